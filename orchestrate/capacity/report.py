"""A case told: as JSON for machines, as Markdown for a job summary, as one GitHub annotation, as lines for a console.

All four say the same things: what was asked; each offer with its reason and time; free and total where somebody may
see it; whether the request was withdrawn and that was confirmed; that nothing ran; when to try again. The words in a
case come from providers and users: none of them can break out of its place in any of the four.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrate import markup
from orchestrate.capacity.taxonomy import Availability, Basis, Case, Classification, Offer, classify
from orchestrate.markup import brief, code, escaped
from orchestrate.verdict import Verdict

__all__ = ["SCHEMA", "annotation", "as_json", "as_markdown", "as_text"]

SCHEMA = "urn:orchestrate:capacity:1"
"""The `$id` of `capacity/schemas/capacity-1.json`, which every `capacity.json` holds."""


def as_json(case: Case) -> dict[str, Any]:
    """The case as the content of `capacity.json`."""
    found = classify(case.offers)
    return {
        "schema": SCHEMA,
        "verdict": found.verdict.label,
        "exit_code": found.verdict.exit_code,
        "reason": found.reason.label,
        "meaning": found.reason.meaning,
        "basis": found.basis.value,
        "mixed": found.mixed,
        "asked": {brief(name, 100): _plain(value) for name, value in case.asked.items()},
        "offers": [
            {
                "where": brief(offer.where),
                "asked": brief(offer.asked),
                "reason": offer.reason.label,
                "verdict": offer.reason.verdict.label,
                "basis": offer.basis.value,
                "detail": brief(offer.detail),
                "at": brief(offer.at, 40),
            }
            for offer in case.offers
        ],
        "availability": [
            {
                "where": brief(item.where),
                "kind": brief(item.kind),
                "total": item.total,
                "free": item.free,
                "source": brief(item.source),
            }
            for item in case.availability
        ],
        "withdrawal": None
        if case.withdrawal is None
        else {
            "withdrawn": case.withdrawal.withdrawn,
            "confirmed": case.withdrawal.confirmed,
            "how": brief(case.withdrawal.how),
        },
        "nothing_ran": not case.ran,
        "retry_after_s": None if found.verdict is Verdict.UNSATISFIABLE else case.retry_after_s,
        "notes": [brief(note) for note in case.notes],
    }


def as_text(case: Case) -> tuple[str, ...]:
    """The case as lines for a console."""
    found = classify(case.offers)
    lines = [f"{found.verdict}: {_headline(found)}", f"asked for: {_asked(case.asked)}"]
    lines += [f"  {_offer(offer)}" for offer in case.offers]
    lines += [f"{_availability(item)}" for item in case.availability]
    lines += _closing(case, found)
    return tuple(lines)


def as_markdown(case: Case) -> str:
    """The case as a section of Markdown, as GitHub renders it in a job summary."""
    found = classify(case.offers)
    parts = [
        f"### {code(found.verdict.label)}: {escaped(found.reason.meaning)}",
        "",
        f"Asked for: {code(_asked(case.asked))}",
        "",
        "| where | reason | decided by | what it said | at (UTC) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for offer in case.offers:
        cells = (offer.where, offer.reason.label, offer.basis.value, offer.detail, offer.at)
        parts.append("| " + " | ".join(code(cell) for cell in cells) + " |")
    if case.availability:
        parts += ["", "| where | kind | total | free | known from |", "| --- | --- | --- | --- | --- |"]
        for item in case.availability:
            numbers = ("not known" if number is None else str(number) for number in (item.total, item.free))
            row = (code(item.where), code(item.kind), *numbers, code(item.source))
            parts.append("| " + " | ".join(row) + " |")
    parts.append("")
    parts += [f"- {escaped(line)}" for line in _closing(case, found)]
    return "\n".join(parts) + "\n"


def annotation(case: Case) -> str:
    """The case as one line that GitHub Actions shows as an annotation of the run."""
    found = classify(case.offers)
    words = [_headline(found), f"asked for {_asked(case.asked)}", *map(_offer, case.offers[:3])]
    if len(case.offers) > 3:
        words.append(f"and {len(case.offers) - 3} more offers")
    words += _closing(case, found)
    return markup.annotation(found.verdict.annotation, f"orchestrate: {found.verdict}", "; ".join(words))


def _headline(found: Classification) -> str:
    told = found.reason.meaning
    if found.mixed:
        told += " (the offers failed for different reasons)"
    if found.basis is Basis.TEXT:
        told += " (read from the provider's text, not from a field)"
    return told


def _closing(case: Case, found: Classification) -> list[str]:
    lines = ["something of it ran all the same" if case.ran else "nothing ran"]
    withdrawal = case.withdrawal
    if withdrawal is None:
        lines.append("whether the request was withdrawn is not known yet")
    elif not withdrawal.withdrawn:
        lines.append(f"the request was not withdrawn: {brief(withdrawal.how)}")
    else:
        proof = "that was confirmed" if withdrawal.confirmed else "that was NOT confirmed"
        lines.append(f"the request was withdrawn, and {proof}: {brief(withdrawal.how)}")
    if found.verdict is Verdict.UNSATISFIABLE:
        lines.append("trying again does not help; change the request or the place")
    elif case.retry_after_s is None:
        lines.append("when to try again is not known")
    else:
        lines.append(f"try again in {_minutes(case.retry_after_s)}")
    if found.mixed:
        reasons = sorted({offer.reason.label for offer in case.offers})
        lines.append(f"a mixed history: {', '.join(reasons)}")
    return [*lines, *(brief(note) for note in case.notes)]


def _offer(offer: Offer) -> str:
    told = f"{brief(offer.where)}: {offer.reason}"
    detail = f", {brief(offer.detail)}" if offer.detail else ""
    return f"{told}{detail} ({brief(offer.at, 40)})"


def _availability(item: Availability) -> str:
    total = "not known" if item.total is None else str(item.total)
    free = "not known" if item.free is None else str(item.free)
    return f"{brief(item.kind)} at {brief(item.where)}: total {total}, free {free} ({brief(item.source)})"


def _asked(asked: Mapping[str, Any]) -> str:
    return brief(
        ", ".join(f"{name} {_plain(value)}" for name, value in sorted(asked.items())) or "nothing that is named"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _plain(value: Any) -> Any:
    """A value for JSON: numbers and truth values stay, all else is text."""
    if value is None or isinstance(value, bool | int):
        return value
    return brief(value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str))
