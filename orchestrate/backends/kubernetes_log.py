"""What a container printed, kept while there is a pod to ask: a deadline deletes the pod, and its log with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrate.backends.kubernetes_api import Kind, name_of
from orchestrate.backends.kubernetes_client import ApiError
from orchestrate.backends.kubernetes_watch import Watch

__all__ = ["KeptLog"]

_EVERY_S = 20.0
_CALL_S = 8.0
_BYTES = 4 << 20
_LINES = 5000


@dataclass(slots=True)
class KeptLog:
    """The log of a run's container, as it was read last."""

    clock: Callable[[], float]
    text: str = ""
    _at: float = float("-inf")

    def keep(self, watch: Watch, *, now: bool = False) -> None:
        """Read it again, if `now`, if that was some time ago or nothing was there; what was read stands otherwise."""
        pod = watch.pod()
        if pod is None or (self.text and not now and self.clock() - self._at < _EVERY_S):
            return
        self._at = self.clock()
        path = f"{Kind.POD.path(watch.names.namespace, name_of(pod))}/log"
        # The limit alone would keep the beginning, not the end.
        query = {"tailLines": str(_LINES), "limitBytes": str(_BYTES)}
        try:
            self.text = watch.api.text(path, watch.api.budget(_CALL_S), query) or self.text
        except ApiError:
            return

    def save(self, folder: Path) -> None:
        """Write it beside the other logs of the run."""
        if self.text:
            folder.mkdir(mode=0o700, exist_ok=True)
            (folder / "node.log").write_text(self.text, encoding="utf-8")
