"""Memory admission: what may run now, and whether a release of the allocator's cache is worth its time."""

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """`python -m harness admission`; see `harness.admission.command`."""
    from harness.admission.command import main as command  # noqa: PLC0415 - importing a part must not load the command

    return command(argv)
