"""Runs commands in forks of one process that has imported what they need: that takes longer than most of what they do.

    python fork_server.py

Each line of standard input is one command as JSON: `script` (`launch_struck`, or `orchestrate` for the command line),
`arguments`, `environ`, `folder`, `out` and `err`, and `ended`, a file that appears with the exit code in it (negative:
the signal). The process ends with its standard input.
"""

import importlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

IMPORTED = (
    "kubernetes.client", "kubernetes.config", "kubernetes.stream", "launch_struck", "orchestrate.backends.kubernetes",
    "orchestrate.cli", "orchestrate.commands.audit", "orchestrate.commands.launch", "orchestrate.commands.teardown",
)  # fmt: skip


def main():
    for name in IMPORTED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait for the commands
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            command = json.loads(line)
            pid = os.fork()
            if pid == 0:
                run(command)
            _, status = os.waitpid(pid, 0)
            Path(command["ended"] + ".new").write_text(str(os.waitstatus_to_exitcode(status)))
            os.rename(command["ended"] + ".new", command["ended"])  # noqa: PTH104  # one that nobody sees half written
            os._exit(0)


def run(command):
    """Be the command; never returns."""
    code = 1
    try:
        for number, path in ((1, command["out"]), (2, command["err"])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(command["environ"])
        os.chdir(command["folder"])
        tempfile.tempdir = None
        sys.argv = [command["script"], *command["arguments"]]
        module = sys.modules["orchestrate.cli" if command["script"] == "orchestrate" else command["script"]]
        code = module.main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001  # the last frame there is: told, and then this process ends
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


if __name__ == "__main__":
    main()
