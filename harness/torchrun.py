"""torchrun, with two additions: who died is written down, and the rendezvous stays on the loopback interface.

    python -m harness.torchrun [--failures FILE] [--parent PID] [--fork-ranks 1] TORCHRUN-ARGUMENTS...

`--failures` names a JSON file that is written when a rank, or torchrun itself, ends badly:

    {"schema": "harness.failures/1", "launcher_signal": null | 15,
     "failures": [{"rank", "local_rank", "pid", "exit_code": 1 | null, "signal": null | 9, "by_torchrun": false,
                   "at": unix seconds, "message"}, ...]}

`by_torchrun` tells the ranks that torchrun ended, because another one had failed, from those that died themselves.
`--rdzv-backend loopback` is a single-node rendezvous whose store listens on 127.0.0.1 alone, on a port that the kernel
chose and that was never free in between, so that two jobs on one machine can not collide; torch's own listens on every
interface. `--parent` is the pid of the starter, with which torchrun then dies. With `--fork-ranks 1` the ranks of a
`-m harness ...` command are forked from torchrun, which has imported everything by then (`harness/forked_rank.py`).
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from harness.__main__ import main as harness_main
from harness.forked_rank import ForkedRank, preload
from harness.processes import die_with_parent

__all__ = ["FAILURES_SCHEMA", "LoopbackRendezvous", "RankFailure", "main"]

FAILURES_SCHEMA = "harness.failures/1"
c10d: Any = dist  # its types do not say all that it exports
_LOOPBACK = "127.0.0.1"
_MESSAGE_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class RankFailure:
    """How one rank ended: by an exit code of its own, or by a signal, which torchrun sent or did not send."""

    rank: int
    local_rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    by_torchrun: bool
    at: int
    message: str


class LoopbackRendezvous(RendezvousHandler):
    """One node, one store, on 127.0.0.1; the ranks use the agent's store."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run_id = parameters.run_id
        listener = socket.create_server((_LOOPBACK, 0), backlog=128)
        self._port: int = listener.getsockname()[1]
        self._store = c10d.TCPStore(
            _LOOPBACK,
            self._port,
            is_master=True,
            timeout=timedelta(seconds=60),
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listener.detach(),
        )

    @property
    def use_agent_store(self) -> bool:
        """The ranks connect to this store and open none of their own."""
        return True

    def get_backend(self) -> str:
        """The name in `--rdzv-backend`."""
        return "loopback"

    def next_rendezvous(self) -> RendezvousInfo:
        """This node alone, as node 0 of 1."""
        where = RendezvousStoreInfo(_LOOPBACK, self._port)
        return RendezvousInfo(c10d.PrefixStore(self._run_id, self._store), 0, 1, where)

    def is_closed(self) -> bool:
        """Never: nobody else can join or close it."""
        return False

    def set_closed(self) -> None:
        """Nobody else waits."""

    def num_nodes_waiting(self) -> int:
        """No other node can find this one."""
        return 0

    def get_run_id(self) -> str:
        """The id that torchrun was given."""
        return self._run_id

    def shutdown(self) -> bool:
        """The store goes with the process."""
        return True


def main(argv: Sequence[str]) -> int:
    """Run torchrun with `argv`; returns the exit code: 0, or 1 where a rank failed or a signal ended torchrun."""
    own, arguments = _split(argv)
    if own.parent is not None:
        die_with_parent(own.parent)
    rendezvous_handler_registry.register("loopback", LoopbackRendezvous)
    sent = _watch_signals_sent()
    if own.fork_ranks:
        _fork_ranks()
    run: Any = torch.distributed.run  # untyped in torch
    try:
        run.run(run.parse_args(arguments))
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        _write(own.failures, None, _failures(error, sent))
        return 1
    except SignalException as error:
        print(f"torchrun was ended by {error.sigval.name}", file=sys.stderr)
        _write(own.failures, int(error.sigval), ())
        return 1
    return 0


def _split(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our options, which come first, and torchrun's arguments, which may hold anything."""
    parser = argparse.ArgumentParser(prog="python -m harness.torchrun", allow_abbrev=False, add_help=False)
    parser.add_argument("--failures", type=Path)
    parser.add_argument("--parent", type=int)
    parser.add_argument("--fork-ranks", type=int, default=0)
    ours = 0
    while ours < len(argv) and argv[ours] in {"--failures", "--parent", "--fork-ranks"}:
        ours += 2
    return parser.parse_args(argv[:ours]), list(argv[ours:])


def _watch_signals_sent() -> dict[int, set[int]]:
    """Pid -> the signals that torchrun sends it from now on: torch keeps no record of them."""
    sent: dict[int, set[int]] = {}
    close = SubprocessHandler.close

    def recording_close(handler: Any, death_sig: signal.Signals | None = None) -> None:
        sent.setdefault(handler.proc.pid, set()).add(int(death_sig or signal.SIGTERM))
        close(handler, death_sig)

    setattr(SubprocessHandler, close.__name__, recording_close)
    return sent


def _fork_ranks() -> None:
    """From now on torchrun forks what would have been `python -u -m harness ...`; anything else it starts as ever."""
    preload()
    start: Any = SubprocessHandler._popen  # noqa: SLF001 - where torch starts a rank; it has no public seam

    def popen(handler: Any, args: tuple[str, ...], env: dict[str, str]) -> Any:
        harness = [sys.executable, "-u", "-m", "harness"]
        if list(args[: len(harness)]) != harness:
            return start(handler, args, env)
        arguments = args[len(harness) :]
        return ForkedRank(lambda: harness_main(arguments), env, handler._stdout, handler._stderr)  # noqa: SLF001

    setattr(SubprocessHandler, start.__name__, popen)


def _failures(error: ChildFailedError, sent: dict[int, set[int]]) -> Iterable[RankFailure]:
    for rank, failure in error.failures.items():
        number = -failure.exitcode if failure.exitcode < 0 else None
        yield RankFailure(
            rank=rank,
            local_rank=failure.local_rank,
            pid=failure.pid,
            exit_code=failure.exitcode if number is None else None,
            signal=number,
            by_torchrun=number in sent.get(failure.pid, ()),
            at=failure.timestamp,
            message=_message(failure.message),
        )


def _message(message: object) -> str:
    """What the rank's own error file says, without its traceback; empty where the rank wrote none."""
    return str(message.get("message", ""))[:_MESSAGE_CHARACTERS] if isinstance(message, dict) else ""


def _write(path: Path | None, launcher_signal: int | None, failures: Iterable[RankFailure]) -> None:
    if path is None:
        return
    record = {
        "schema": FAILURES_SCHEMA,
        "launcher_signal": launcher_signal,
        "failures": [asdict(failure) for failure in failures],
    }
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(record, indent=1) + "\n")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
