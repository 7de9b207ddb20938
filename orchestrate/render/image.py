"""Container image references: `[host[:port]/]path[:tag][@sha256:hex]`.

The grammar is the one of the distribution project (`reference.go`), without its short-name rewriting: what is given
is what is rendered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrate.errors import UsageError

__all__ = ["ImageReference", "parse_image"]

_MAX_NAME_LENGTH = 255
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9a-fA-F:]+\])"
_PATH = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<name>(?:{_HOST}(?::[0-9]+)?/)?{_PATH}(?:/{_PATH})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ImageReference:
    """A parsed image reference; `text` is as given."""

    text: str
    name: str
    tag: str | None
    digest: str | None

    @property
    def pinned(self) -> bool:
        """Whether the bytes are named: by digest, not by a tag that can move."""
        return self.digest is not None

    def warning(self) -> str | None:
        """What to say about a reference whose bytes can change, or nothing."""
        if self.pinned:
            return None
        named = f"tag {self.tag!r}" if self.tag is not None else "the implied tag 'latest'"
        return f"image {self.text} is named by {named}, which can move: pin it as {self.name}@sha256:DIGEST"


def parse_image(text: str) -> ImageReference:
    """The reference in `text`; `UsageError` if it is none.

    `docker:NAME`, as SkyPilot's `image_id` spells it, is refused: it would be the tag NAME of an image `docker`.
    """
    if text.startswith("docker:"):
        raise UsageError(
            f"{text[:200]!r} is not an image reference: it starts with 'docker:'",
            remedy="leave 'docker:' off; for the image of that name give --image docker.io/library/docker",
        )
    match = _REFERENCE.fullmatch(text)
    if match is None or len(match["name"]) > _MAX_NAME_LENGTH:
        shown = text if len(text) <= 200 else text[:200] + "..."
        raise UsageError(
            f"{shown!r} is not an image reference",
            remedy="give --image NAME@sha256:DIGEST (64 hex digits), for example the RepoDigest that "
            "`docker image inspect` or `crane digest` prints",
        )
    return ImageReference(text=text, name=match["name"], tag=match["tag"], digest=match["digest"])
