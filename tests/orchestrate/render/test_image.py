"""Image references: by digest, by tag with a warning, or not at all."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrate.errors import UsageError
from orchestrate.render import parse_image

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "text",
    [
        f"torch@{DIGEST}",
        f"pytorch/pytorch:2.13.0-cuda12.6-cudnn9-devel@{DIGEST}",
        f"registry.example.org:5000/a/b__c/d-e@{DIGEST}",
        f"[::1]:5000/a@{DIGEST}",
    ],
)
def test_a_digest_pins_the_image_without_a_warning(text):
    image = parse_image(text)
    assert image.pinned
    assert image.digest == DIGEST
    assert image.warning() is None
    assert image.text == text


@pytest.mark.parametrize(("text", "named"), [("a/b:2.13", "tag '2.13'"), ("host:5000/a", "the implied tag 'latest'")])
def test_a_tag_is_taken_with_a_warning_that_says_how_to_pin(text, named):
    image = parse_image(text)
    assert not image.pinned
    assert named in image.warning()
    assert f"{image.name}@sha256:" in image.warning()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/UPPER",
        "a b",
        "a:",
        "a@sha256:abc",
        f"a@{DIGEST.upper()}",
        f"a@{DIGEST}\n",
        "docker:a/b",  # SkyPilot's spelling; rendering adds the prefix
        "a:tag\nx: y",
        "${{ secrets.X }}",
        "$(id)",
        "a/" + "b" * 300,
        "x" * 100_000,
    ],
)
def test_garbage_is_an_error_that_names_it(text):
    with pytest.raises(UsageError, match="not an image reference") as caught:
        parse_image(text)
    assert len(caught.value.cause) < 500


@given(st.text(max_size=80))
def test_what_is_accepted_holds_nothing_a_shell_or_yaml_could_read(text):
    try:
        image = parse_image(text)
    except UsageError:
        return
    assert re.fullmatch(r"[A-Za-z0-9._/:@\[\]-]+", image.text)
