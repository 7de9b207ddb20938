"""Kubernetes quantities (`4`, `500m`, `16Gi`, `2e3`) as exact numbers."""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["quantity"]

_SCALE = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}  # fmt: skip
_FORM = re.compile(
    r"([+-]?[0-9]{1,30}(?:\.[0-9]{0,30})?|[+-]?\.[0-9]{1,30})(?:([eE][+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i)?)"
)


def quantity(text: object) -> Fraction | None:
    """The number that a quantity stands for; None for what is none."""
    match = _FORM.fullmatch(str(text).strip())
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    scale = Fraction(10) ** int(exponent[1:]) if exponent else _SCALE.get(suffix or "")
    return None if scale is None else Fraction(number) * scale
