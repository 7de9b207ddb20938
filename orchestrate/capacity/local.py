"""Why this machine can not give the GPUs that a run asks for: too few of the kind, or others hold their memory."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrate.capacity.taxonomy import Availability, Basis, Case, Offer, Reason

__all__ = ["refusal"]


def refusal(found: Sequence[tuple[str, int]], *, kind: str, count: int, idle_mib: int, at: str) -> Case | None:
    """The case that the GPUs of this machine make against `count` idle ones of `kind`; None where they are there.

    `found` has name and used memory in MiB of each GPU; one that holds less than `idle_mib` is idle.
    """
    used = [mib for name, mib in found if kind in name]
    free = sum(1 for mib in used if mib < idle_mib)
    if free >= count:
        return None
    if len(used) >= count:
        reason = Reason.NOTHING_FREE
        detail = f"{free} of {len(used)} {kind} are idle; others hold the memory of the rest"
    else:
        reason = Reason.NEVER_FITS if used else Reason.UNKNOWN_KIND
        detail = f"this machine has {', '.join(name for name, _ in found) or 'no NVIDIA GPU'}"
    asked = f"{kind}:{count}"
    return Case(
        asked={"accelerators": asked},
        offers=(Offer("local", asked, reason, Basis.STRUCTURE, detail, at),),
        availability=(Availability("local", kind, len(used), free, "nvidia-smi"),),
        retry_after_s=reason.retry_after_s,
    )
