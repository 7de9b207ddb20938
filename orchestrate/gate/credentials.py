"""The credentials of a job, as one text that a secret holds: a kubeconfig, or files and variables for another client.

{"schema": "orchestrate.gate-credentials/1",
"env": {"SKYPILOT_API_SERVER_ENDPOINT": "https://...", "SKYPILOT_SERVICE_ACCOUNT_TOKEN": "..."},
"files": {"~/.slurm/config": "...", "~/.ssh/id_ed25519": "..."}}
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath

from orchestrate.errors import ReceiptError, UsageError
from orchestrate.receipts.canonical import parse_strict
from orchestrate.user import home_folder

__all__ = ["CREDENTIALS_SCHEMA", "placed"]

CREDENTIALS_SCHEMA = "orchestrate.gate-credentials/1"
_MAX_BYTES = 1 << 20
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_REMEDY = "docs/gate.md says what the secret holds"


@contextmanager
def placed(file: Path | None, environ: MutableMapping[str, str], *, remote: bool) -> Iterator[None]:
    """Have what `file` holds where its client looks for it, in files and variables, and take it away afterwards.

    A kubeconfig stays where it is and is named by KUBECONFIG. Files go into the user's home folder, for their owner
    alone, and replace none that is there. None is nothing to do, nor is an empty file where nothing `remote` is asked.

    Raises:
        UsageError: the file can not be read, or is neither; no word of it is in the error.
    """
    if file is None:
        yield
        return
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"the credentials {file} can not be read: {error.strerror}", remedy=_REMEDY) from error
    if not data.strip() and not remote:
        yield
        return
    if not data.strip():
        raise UsageError(f"the credentials {file} are empty: the job was given no secret", remedy=_REMEDY)
    env: dict[str, str] = {"KUBECONFIG": str(file.absolute())}
    files: dict[str, str] = {}
    if data.lstrip().startswith(b"{"):
        env, files = _parsed(data, file)
    home = home_folder() or Path()
    if files and home == Path():
        raise UsageError("there is no home folder for the credentials", remedy="set HOME")
    with ExitStack() as left:
        for name, text in files.items():
            _write(home / name, text, left)
        for name, value in env.items():
            left.callback(_restore, environ, name, environ.get(name))
            environ[name] = value
        yield


def _restore(environ: MutableMapping[str, str], name: str, value: str | None) -> None:
    if value is None:
        environ.pop(name, None)
    else:
        environ[name] = value


def _parsed(data: bytes, file: Path) -> tuple[dict[str, str], dict[str, str]]:
    try:
        tree = parse_strict(data[: _MAX_BYTES + 1], what=file.name)
    except ReceiptError as error:
        raise UsageError(f"the credentials {file} are no JSON", remedy=_REMEDY) from error
    if not isinstance(tree, dict) or tree.get("schema") != CREDENTIALS_SCHEMA:
        raise UsageError(f"the credentials {file} have another schema than {CREDENTIALS_SCHEMA}", remedy=_REMEDY)
    if set(tree) - {"schema", "env", "files"}:
        raise UsageError(f"the credentials {file} have members beside schema, env and files", remedy=_REMEDY)
    env, files = tree.get("env", {}), tree.get("files", {})
    for each in (env, files):
        if not isinstance(each, dict) or not all(isinstance(value, str) for value in each.values()):
            raise UsageError(f"env and files of the credentials {file} must map names to texts", remedy=_REMEDY)
    if not all(_VARIABLE.fullmatch(name) for name in env) or not all(map(_is_below_home, files)):
        raise UsageError(f"the credentials {file} name what is no variable, or no file below ~/", remedy=_REMEDY)
    return env, {name.removeprefix("~/"): text for name, text in files.items()}


def _is_below_home(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return name.startswith("~/") and len(parts) > 1 and ".." not in parts and "\0" not in name


def _write(path: Path, text: str, left: ExitStack) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"{path} can not be written for the credentials: {error.strerror}", remedy=_REMEDY) from error
    left.callback(path.unlink, missing_ok=True)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
