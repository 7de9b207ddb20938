"""Secrets that a command was given and printed: taken out of what it leaves, by their values.

The values of variables whose names say that they are secret are known here; anything else that a command knows is not.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

__all__ = ["conceal", "secret_values"]

_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSW|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|SIGN_?KEY|CREDENTIAL", re.IGNORECASE)
_NO_SECRET = re.compile(r"[/~.]|https?://[^@]*\Z")
_MIN_LENGTH, _SURELY_LENGTH = 8, 20


def secret_values(env: Mapping[str, str]) -> dict[bytes, str]:
    """Value -> name of each variable of `env` that holds a secret by its name.

    Paths, addresses and plain words are none: concealing those would only damage what is to be read.
    """
    values: dict[bytes, str] = {}
    for name, value in env.items():
        if not _SECRET_NAME.search(name) or _NO_SECRET.match(value):
            continue
        for line in value.splitlines():
            if _is_secret(line):
                texts = {line, json.dumps(line)[1:-1], escape(line), escape(line, {'"': "&quot;"})}
                values |= {text.encode("utf-8", "surrogateescape"): name for text in texts}
    return values


def conceal(folder: Path, values: Mapping[bytes, str]) -> tuple[str, ...]:
    """Put `<NAME>` in place of each value in the files of `folder`; the names of those that were there.

    Raises:
        OSError: a file can not be read or written.
    """
    if not values:
        return ()
    longest_first = sorted(values, key=len, reverse=True)
    pattern = re.compile(b"|".join(map(re.escape, longest_first)))
    found: set[str] = set()

    def instead(match: re.Match[bytes]) -> bytes:
        found.add(values[match.group()])
        return f"<{values[match.group()]}>".encode()

    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            if not any(pattern.search(line) for line in file):
                continue
            file.seek(0)
            beside = path.with_name(f".{secrets.token_hex(8)}")
            with beside.open("wb") as clean:
                clean.writelines(pattern.sub(instead, line) for line in file)
            beside.replace(path)
    return tuple(sorted(found))


def _is_secret(line: str) -> bool:
    mixed = any(each.isdigit() for each in line) and any(each.isalpha() for each in line)
    return len(line) >= _SURELY_LENGTH or (len(line) >= _MIN_LENGTH and mixed)
