"""Secrets that a command was given and printed: taken out of what it leaves, by their values.

The values of variables whose names say that they are secret are known here; anything else that a command knows is not.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

__all__ = ["Secrets", "secret_values"]

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


class Secrets:
    """The secret values of an environment, and which of them were met."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._names = secret_values(env)
        self._found: set[str] = set()
        longest_first = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None

    @property
    def found(self) -> tuple[str, ...]:
        """The names of those that were taken out of something."""
        return tuple(sorted(self._found))

    def conceal(self, folder: Path) -> None:
        """Put `(NAME)` in place of each value in the files of `folder`: what is XML or JSON stays such.

        Raises:
            OSError: a file can not be read or written.
        """
        if self._pattern is None:
            return
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            with path.open("rb") as file:
                if not any(self._pattern.search(line) for line in file):
                    continue
                file.seek(0)
                beside = path.with_name(f".{secrets.token_hex(8)}")
                with beside.open("wb") as clean:
                    clean.writelines(self._pattern.sub(self._instead, line) for line in file)
                beside.replace(path)

    def without(self, value: Any) -> Any:
        """The same for every text in a JSON tree; names of members stay."""
        match value:
            case str() if self._pattern is not None:
                data = value.encode("utf-8", "surrogateescape")
                return self._pattern.sub(self._instead, data).decode("utf-8", "surrogateescape")
            case Mapping():
                return {name: self.without(item) for name, item in value.items()}
            case list() | tuple():
                return [self.without(item) for item in value]
            case _:
                return value

    def _instead(self, match: re.Match[bytes]) -> bytes:
        name = self._names[match.group()]
        self._found.add(name)
        return f"({re.sub(r'[^A-Za-z0-9_]', '_', name)})".encode()


def _is_secret(line: str) -> bool:
    mixed = any(each.isdigit() for each in line) and any(each.isalpha() for each in line)
    return len(line) >= _SURELY_LENGTH or (len(line) >= _MIN_LENGTH and mixed)
