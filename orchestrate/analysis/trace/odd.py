"""How ranks are named in sentences."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["names_of", "odd_words"]


def names_of(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 1 and 2`, long lists shortened."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) > 12:
        return f"ranks {', '.join(map(str, ordered[:8]))} and {len(ordered) - 8} more"
    return f"ranks {', '.join(map(str, ordered[:-1]))} and {ordered[-1]}"


def odd_words(odd: Sequence[int] | None, ranks: int) -> str:
    """Who is odd, or that no majority says so; nothing where all do the same."""
    if odd is None:
        return f"no majority among {ranks} ranks: none of them is the odd one" if ranks > 1 else ""
    if not odd:
        return ""
    return f"odd: {names_of(odd)}"
