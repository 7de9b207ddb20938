"""What a step writes for GitHub: outputs, a job summary, annotations, each within the bound that GitHub sets."""

import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from orchestrate.markup import annotation

__all__ = ["MAX_ANNOTATIONS", "MAX_SUMMARY_BYTES", "append_outputs", "append_summary", "bounded_annotations"]

MAX_SUMMARY_BYTES = 1 << 20
"""A larger summary aborts the upload of all of it."""

MAX_ANNOTATIONS = 10
"""Of one kind and step; GitHub drops the rest."""

_CUT = "\n\n*The rest was cut: a summary has at most 1 MiB. The artifact has all of it.*\n"


def append_outputs(path: Path, outputs: Mapping[str, str]) -> None:
    """Append step outputs. Every value goes between random delimiters, so that none can set another output."""
    lines = []
    for name, value in outputs.items():
        delimiter = f"end-{secrets.token_hex(16)}"
        lines.append(f"{name}<<{delimiter}\n{value}\n{delimiter}\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(lines))


def append_summary(path: Path, markdown: str) -> None:
    """Append to the job summary, cut where it would outgrow what GitHub takes."""
    there = path.stat().st_size if path.exists() else 0
    data = markdown.encode("utf-8", "replace")
    room = MAX_SUMMARY_BYTES - there
    if len(data) > room:
        cut = _CUT.encode()
        data = data[: max(0, room - len(cut))].decode("utf-8", "ignore").encode() + cut[: max(0, room)]
    with path.open("ab") as file:
        file.write(data)


def bounded_annotations(worst_first: Iterable[tuple[str, str, str]]) -> tuple[str, ...]:
    """At most ten of each level, the first ones given; what is left out is counted in the last one that is kept."""
    kept: dict[str, list[tuple[str, str]]] = {}
    for level, title, message in worst_first:
        kept.setdefault(level, []).append((title, message))
    lines: list[str] = []
    for level, rows in kept.items():
        shown = rows if len(rows) <= MAX_ANNOTATIONS else rows[: MAX_ANNOTATIONS - 1]
        lines.extend(annotation(level, title, message) for title, message in shown)
        if len(shown) < len(rows):
            lines.append(annotation(level, "and more", f"{len(rows) - len(shown)} more are in the summary"))
    return tuple(lines)
