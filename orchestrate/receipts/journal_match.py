"""Whether journal and receipts tell of the same receipts, one by one and in the same order."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrate.receipts.journal_chain import JournalRecord
from orchestrate.receipts.record import RunRecord
from orchestrate.receipts.statement import Receipt, Stage

__all__ = ["journal_gaps"]


def journal_gaps(record: RunRecord) -> list[str]:
    """Each place where the journal announces another receipt than the one that was written, or none at all.

    A receipt is written before its record. Whoever dies, or meets a full disk, between the two leaves a receipt without
    a record; somebody else goes on then, or a note says so, and the journal tells of that next.
    """
    if record.journal is None or not record.receipts:
        return []
    return list(_compared(record.receipts, record.journal.records))


def _compared(receipts: tuple[Receipt, ...], records: tuple[JournalRecord, ...]) -> Iterator[str]:
    left = list(receipts)
    for place, each in enumerate(records):
        if each.kind not in {"receipt", "closure"}:
            continue
        name = "closure_sha256" if each.kind == "closure" else "sha256"
        index = next((index for index, receipt in enumerate(left) if receipt.sha256 == each.facts.get(name)), None)
        if index is None:
            yield f"journal record {each.seq} announces a receipt of {_stage(each)} that is not the next one there"
            continue
        for skipped in left[:index]:
            if not _may_be_unannounced(skipped, records[:place]):
                yield f"the journal does not announce the {skipped.stage} receipt {skipped.sha256[:12]}"
        receipt = left[index]
        del left[: index + 1]
        said = (_stage(each), each.facts.get("attempt", receipt.attempt))
        if said != (receipt.stage.value, receipt.attempt):
            yield f"the journal calls the {receipt.stage} receipt {receipt.sha256[:12]} one of {said[0]}, {said[1]!r}"
    for receipt in left:
        if not _may_be_unannounced(receipt, records):
            yield f"the journal does not announce the {receipt.stage} receipt {receipt.sha256[:12]}"


def _stage(record: JournalRecord) -> str:
    return Stage.CLOSURE.value if record.kind == "closure" else str(record.facts.get("stage"))


def _may_be_unannounced(receipt: Receipt, before: tuple[JournalRecord, ...]) -> bool:
    """Whether somebody took over, or something went wrong, so that the record of this receipt may be missing."""
    return receipt.stage is Stage.CLOSURE or any(each.kind in {"takeover", "note"} for each in before)
