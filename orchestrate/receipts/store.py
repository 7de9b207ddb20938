"""The receipts of one run on disk: `<sha256>.json`, written once, never edited, each naming the one before."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrate.errors import ReceiptError
from orchestrate.receipts import statement
from orchestrate.receipts.canonical import canonical_bytes, sha256_hex
from orchestrate.receipts.files import list_files, read_file
from orchestrate.receipts.statement import Receipt, Stage

__all__ = ["MAX_RECEIPTS", "MAX_RECEIPT_BYTES", "ReceiptStore", "in_order", "newest_closure", "write_durably"]

MAX_RECEIPT_BYTES = 16 << 20
MAX_RECEIPTS = 4096


class ReceiptStore:
    """The folder `receipts/` of a run directory. One writer at a time: whoever holds the lock of the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, made: Mapping[str, Any]) -> str:
        """Write one statement durably and return its SHA-256, which is its name.

        The bytes go to a temporary name, are fsynced, renamed, and the folder is fsynced: after a crash the receipt
        is there whole or not at all. Writing the same statement twice is one receipt. Raises `ReceiptError` when the
        statement is not one, `OSError` when the disk refuses.
        """
        data = canonical_bytes(made)
        if len(data) > MAX_RECEIPT_BYTES:
            raise ReceiptError(
                f"a receipt of {len(data)} bytes is larger than {MAX_RECEIPT_BYTES}",
                remedy="keep rows and logs in evidence files, and bind those by digest",
            )
        statement.parse(data)
        sha256 = sha256_hex(data)
        self._make_folder()
        self._drop_torn_writes()
        final = self.folder / f"{sha256}.json"
        if not final.exists():
            write_durably(final, data)
        _fsync_folder(self.folder)
        return sha256

    def load(self) -> tuple[Receipt, ...]:
        """All receipts, first written first; no receipts at all is an empty tuple.

        A `ReceiptError` names the file that is damaged, or the gap or fork in the chain.
        """
        if not self.folder.is_dir():
            return ()
        listing = list_files(self.folder, limit=MAX_RECEIPTS)
        names = [name for name in listing.files if name.endswith(".json") and not name.startswith(_TORN)]
        return in_order([self._read(name) for name in names])

    def tip(self) -> str | None:
        """The digest that the next receipt must give as `previous`; None before the first one."""
        receipts = self.load()
        return receipts[-1].sha256 if receipts else None

    def newest_closure(self) -> Receipt | None:
        """The closure that no other supersedes; None when there is none, `ReceiptError` when there are several."""
        return newest_closure(self.load())

    def _read(self, name: str) -> Receipt:
        data = read_file(self.folder, name, limit=MAX_RECEIPT_BYTES)
        if f"{sha256_hex(data)}.json" != name:
            raise ReceiptError(f"receipt {name} does not have the content that its name promises", remedy=_DAMAGED)
        return statement.parse(data, name=f"receipt {name[:12]}")

    def _make_folder(self) -> None:
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, exist_ok=True)
            _fsync_folder(self.folder.parent)

    def _drop_torn_writes(self) -> None:
        for torn in self.folder.glob(f"{_TORN}*"):
            torn.unlink(missing_ok=True)


def in_order(receipts: Sequence[Receipt]) -> tuple[Receipt, ...]:
    """The receipts from the first written to the last, by following `previous`.

    Raises `ReceiptError` when they are not one unbroken line: a receipt whose predecessor is not there (a stage was
    removed), or two with the same predecessor (two histories).
    """
    after: dict[str | None, list[Receipt]] = {}
    for receipt in receipts:
        after.setdefault(receipt.previous, []).append(receipt)
    line: list[Receipt] = []
    last: str | None = None
    while following := after.pop(last, []):
        if len(following) > 1:
            names = " and ".join(f"{receipt.stage} {receipt.sha256[:12]}" for receipt in following)
            raise ReceiptError(f"the chain forks: {names} both follow {last and last[:12]}", remedy=_DAMAGED)
        line.append(following[0])
        last = following[0].sha256
    if len(line) != len(receipts):
        gap = next(receipt for group in after.values() for receipt in group)
        raise ReceiptError(
            f"the chain has a gap: the {gap.stage} receipt {gap.sha256[:12]} follows {str(gap.previous)[:12]}, "
            "which is not there",
            remedy=_DAMAGED,
        )
    return tuple(line)


def newest_closure(receipts: Sequence[Receipt]) -> Receipt | None:
    """The closure that no other closure supersedes; None without any, `ReceiptError` when several claim to be it."""
    closures = [receipt for receipt in receipts if receipt.stage is Stage.CLOSURE]
    superseded = [receipt.facts.get("supersedes") for receipt in closures]
    heads = [receipt for receipt in closures if receipt.sha256 not in superseded]
    if len(heads) > 1:
        names = " and ".join(head.sha256[:12] for head in heads)
        raise ReceiptError(f"two closures claim to be the newest: {names}", remedy=_DAMAGED)
    return heads[0] if heads else None


def write_durably(final: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all, whatever happens; its folder is not yet synced."""
    torn = final.with_name(f"{_TORN}{secrets.token_hex(8)}")
    descriptor = os.open(torn, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        torn.rename(final)
    except BaseException:
        torn.unlink(missing_ok=True)
        raise


_TORN = ".writing-"
_DAMAGED = "the receipts were damaged or edited; compare with a copy, or with the closure digest noted at the run's end"


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
