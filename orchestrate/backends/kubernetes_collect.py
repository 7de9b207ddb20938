"""From the end of the payload to the evidence at home.

It is fetched into a folder beside the run's evidence, compared with the digest that the container sealed it with, and
only then put in its place: what lies in `evidence` came whole, or the collect receipt says what is wrong with it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrate.backends.kubernetes_api import Object, name_of
from orchestrate.backends.kubernetes_client import ApiError
from orchestrate.backends.kubernetes_evidence import MARKS, Container, EvidenceError, evidence_sha256, json_lines
from orchestrate.backends.kubernetes_job import digest_of
from orchestrate.backends.kubernetes_sink import Sealed
from orchestrate.backends.kubernetes_watch import Watch, termination_message
from orchestrate.backends.protocol import Fact
from orchestrate.errors import OrchestrateError

__all__ = ["COLLECT_S", "Collector"]

COLLECT_S = 50.0
"""How long `bring_home` may wait for a payload that was told to end, and fetch what it wrote."""

_FETCH_S = 45.0
_TAIL_S = 6.0
_LAST_WORDS_S = 5.0
_OUTAGE_S = 20.0


@dataclass(slots=True)
class Collector:
    """The evidence of one run: read while it grows, fetched when it is sealed.

    Args:
        tell: takes a fact for the journal.
    """

    tell: Callable[[Fact], None]
    sleep: Callable[[float], None] = time.sleep
    sealed: str | None = None
    """The digest that was fetched and verified; None before that."""
    payload_exit_code: int | None = None
    acknowledged: bool = False
    problem: str | None = None
    must_end: bool = False
    """The payload could not be told to end: it is told as soon as the API answers again."""
    _offset: int = 0
    _rest: bytes = b""
    _into: Path | None = field(default=None)

    def into(self, evidence: Path) -> None:
        """Where the evidence is to be at the end."""
        self._into = evidence.with_name(f"{evidence.name}.arriving")

    def advance(self, watch: Watch) -> tuple[Mapping[str, Any], ...]:
        """The new lines of progress; fetches and acknowledges the evidence as soon as it is sealed."""
        pod = watch.running_pod()
        if self.acknowledged or pod is None:
            return ()
        container = Container(watch.api, watch.names.namespace, name_of(pod))
        progress: tuple[Mapping[str, Any], ...] = ()
        try:
            tail = container.tail(self._offset, watch.api.budget(_TAIL_S))
            progress = self._progress(tail.data)
            if tail.ended is not None:
                self._take(container, tail.ended)
        except (EvidenceError, OSError) as error:
            self.problem = f"the evidence of pod {name_of(pod)} was not taken: {error}"
        except ApiError as error:
            self.problem = self.problem or f"the evidence could not be fetched from pod {name_of(pod)}: {error}"
        return progress

    def bring_home(
        self, watch: Watch | None, evidence: Path, sink: Callable[[Path], Sealed] | None = None
    ) -> str | None:
        """Put the evidence into `evidence`; what is wrong with it, None if nothing is.

        `sink` brings the copy that outlived the pod to a folder; None where the run keeps none.
        """
        self.into(evidence)
        if self.sealed is None and watch is not None:
            self._fetch_late(watch)
        if self.sealed is None and sink is not None:
            self._take_from(sink)
        if self.sealed is None and self._arrived() is None:
            return self.problem or "the pod is gone, and its evidence with it"
        problem = None if self.sealed is not None else self.problem or "the evidence was never sealed"
        if problem is None and watch is not None:
            problem = self._contradiction(watch)
        return self._move(evidence) or problem

    def recall(self, fact: Fact) -> None:
        """Another process fetched the evidence: it is believed when it lies there and its digest holds."""
        self.sealed = str(fact["sha256"])
        self.payload_exit_code = fact.get("exit_code")

    def verify_recalled(self, evidence: Path) -> None:
        """Forget what was recalled where the files on this disk do not bear it out."""
        self.into(evidence)
        if self.sealed is None:
            return
        arrived = self._arrived()
        if arrived is not None and evidence_sha256(arrived) == self.sealed:
            return
        if evidence.is_dir() and evidence_sha256(evidence) == self.sealed:
            shutil.rmtree(evidence.with_name(f"{evidence.name}.arriving"), ignore_errors=True)
            return
        self.sealed = None

    def _take(self, container: Container, ended: str) -> None:
        digest, self.payload_exit_code = digest_of(ended)
        if self.sealed is None:
            if digest is None:
                raise EvidenceError(f"the container says {ended[:200]!r} about its end")
            found = self._fetch(container)
            if found != digest:
                raise EvidenceError(f"what arrived has the digest {found}, what was sealed {digest}")
            self.sealed, self.problem = digest, None
            self.tell({"kind": "evidence", "sha256": digest, "exit_code": self.payload_exit_code})
            return  # that it is home is on the disk before the container is let go: the next call does that
        container.acknowledge(container.api.budget(_TAIL_S))
        self.acknowledged = True

    def _fetch(self, container: Container) -> str:
        if self._into is None:
            raise EvidenceError("nobody said where to")
        shutil.rmtree(self._into, ignore_errors=True)
        return container.fetch(self._into, container.api.budget(_FETCH_S))

    def _fetch_late(self, watch: Watch) -> None:
        """Wait for the seal of a payload that was told to end; without one, take what is there."""
        budget, outage = watch.api.budget(COLLECT_S), watch.api.budget(_OUTAGE_S)
        while True:
            try:
                watch.look(budget, tries=2)
            except ApiError as error:
                self.problem = f"the pod can not be looked at: {error}"
                if outage.left() <= 0 or budget.left() <= 0:
                    return
            else:
                pod = watch.running_pod()
                if pod is None:
                    self._from_before(watch.pod())
                    return
                self._end(watch, pod)
                self.advance(watch)
                if self.sealed is not None:
                    self.advance(watch)
                    return
                if budget.left() <= 0:
                    break
            self.sleep(min(1.0, budget.left()))
        try:
            self._fetch(Container(watch.api, watch.names.namespace, name_of(pod)))
        except (ApiError, EvidenceError, OSError) as error:
            self.problem = f"the evidence could not be fetched: {error}"
        else:
            self.problem = "the payload had not ended when its evidence was taken: it is not sealed"

    def _end(self, watch: Watch, pod: Object) -> None:
        if not self.must_end:
            return
        try:
            Container(watch.api, watch.names.namespace, name_of(pod)).end_payload(watch.api.budget(_TAIL_S))
        except ApiError as error:
            self.problem = f"the payload can not be told to end: {error}"
        else:
            self.must_end = False

    def _take_from(self, sink: Callable[[Path], Sealed]) -> None:
        into = self._into
        if into is None:
            return
        shutil.rmtree(into, ignore_errors=True)
        try:
            found = sink(into)
        except (ApiError, EvidenceError, OrchestrateError, OSError) as error:
            shutil.rmtree(into, ignore_errors=True)
            before = f"{self.problem}; and " if self.problem else ""
            self.problem = f"{before}the copy that outlives the pod could not be taken: {error}"
        else:
            self.sealed, self.payload_exit_code, self.problem = found.sha256, found.exit_code, None

    def _from_before(self, pod: Object | None) -> None:
        """Whether what an earlier process fetched is what the container sealed, by its last words."""
        said, code = digest_of(termination_message(pod))
        arrived = self._arrived()
        if said is not None and arrived is not None and evidence_sha256(arrived) == said:
            self.sealed, self.payload_exit_code, self.problem = said, code, None
        else:
            self.problem = self.problem or "the container ended before its evidence was taken"

    def _contradiction(self, watch: Watch) -> str | None:
        """Whether the container's last words name another digest. Nothing if it left none: its pod may be gone."""
        budget = watch.api.budget(_LAST_WORDS_S)
        message = termination_message(watch.pod())
        while message is None and budget.left() > 0:
            try:
                watch.look(budget)
            except ApiError:
                return None
            message = termination_message(watch.pod())
            if message is None and watch.running_pod() is None:
                return None
            self.sleep(min(0.5, budget.left()))
        said, _ = digest_of(message)
        if said is not None and said != self.sealed:
            return f"the container's last words name the digest {said}, what arrived has {self.sealed}"
        return None

    def _arrived(self) -> Path | None:
        return self._into if self._into is not None and self._into.is_dir() else None

    def _move(self, evidence: Path) -> str | None:
        arrived = self._arrived()
        if arrived is None:
            return None  # an earlier call has moved it
        try:
            for mark in MARKS:
                (arrived / mark).unlink(missing_ok=True)
            if evidence.exists():
                shutil.rmtree(evidence)
            arrived.rename(evidence)
        except OSError as error:
            return f"the evidence could not be put in its place: {error.strerror}"
        return None

    def _progress(self, data: bytes) -> tuple[Mapping[str, Any], ...]:
        self._offset += len(data)
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest if newline else whole + rest
        return tuple(json_lines(whole)) if newline else ()
