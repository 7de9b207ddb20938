"""What a certificate does not prove, said in it: each sentence follows from what is, or is not, inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["does_not_prove"]


def does_not_prove(certificate: Mapping[str, Any]) -> list[str]:
    """The limits of `certificate`, in plain words."""
    said = [
        (
            "That the measurements are honest: whoever holds the file can make another one from other numbers. "
            "Pin the digest (calibrate check --expect-sha256) or link a receipt."
        ),
        "Anything about a device, dtype, hidden size, layer geometry or parallel shape outside `admitted`.",
        "Absolute times: only the order of layouts within one cell is predicted.",
    ]
    if certificate["verdict"] != "certified":
        said.insert(0, "That the table may be used: a gate does not hold.")
    elif certificate["admitted"] is None:
        said.insert(0, "Where the table may be used: the input does not say what it was measured on.")
    if certificate["manifest_sha256"] is None:
        said.append("That every cell that was meant to be measured is here: no manifest was given.")
    if not certificate["receipts"]:
        said.append("Which run measured the cells: no receipt is linked.")
    in_sample = [f"{block['by']} {block['name']}" for block in certificate["blocks"] if block["basis"] == "in-sample"]
    if in_sample:
        said.append(
            f"Generalisation in {', '.join(in_sample)}: too little of it was held out, "
            "its gates stand on cells of the fit."
        )
    if any(candidate["samples_ms"] is None for cell in certificate["cells"] for candidate in cell["candidates"]):
        said.append(
            "The shape of the noise: rounds were reduced to a median and a spread, intervals use a noise model."
        )
    if certificate["schedules"] != ["fixed"]:
        said.append("Equal care for every candidate: a racing schedule stopped measuring those that were decided.")
    if certificate["production"] is None:
        said.append("Production regret: `automatic` was not measured.")
    return said
