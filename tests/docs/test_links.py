"""Every relative link and anchor of the documentation leads somewhere."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def links(page: Path) -> list[str]:
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    inline = [child for token in tokens for child in token.children or ()]
    hrefs = [token.attrGet("href") or token.attrGet("src") for token in inline]
    return [str(href) for href in hrefs if href]


def anchors(page: Path) -> set[str]:
    tokens = MarkdownIt("commonmark").parse(page.read_text())
    titles = [after.content for token, after in itertools.pairwise(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    found = []
    for href in links(page):
        if re.match(r"[a-z]+:", href):
            continue
        path, _, anchor = href.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(href)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    assert broken(page) == []


def test_a_broken_link_and_a_broken_anchor_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A title\n\n[ok](#a-title) [gone](gone.md) [no anchor](#nowhere)\n")
    assert broken(page) == ["gone.md", "#nowhere"]
