"""A run as one self-contained HTML page: no script, no request to anywhere, light and dark, down to a phone's width."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from orchestrate import __version__
from orchestrate.receipts.record import RunRecord
from orchestrate.receipts.verify import Verification
from orchestrate.report.certificate_page import certificate_section
from orchestrate.report.divergence import divergence_section
from orchestrate.report.view import BELOW, make_view
from orchestrate.report.words import printable, short

__all__ = ["render_page"]


def render_page(
    record: RunRecord,
    found: Verification,
    *,
    made_at: datetime,
    live: bool = False,
    certificate: Mapping[str, Any] | None = None,
) -> str:
    """The page of `record`, verified as `found`, as HTML text. `live` says that the run is still going on.

    `certificate` is one that this run measured, checked already: its pictures and tables come last on the page.

    Whatever the record holds is text on the page and never markup, and no character of it steers how others are shown:
    the template escapes every value, control and format characters become `?`, and the page's content security policy
    allows nothing but its own style sheet.
    """
    environment = Environment(
        loader=PackageLoader("orchestrate.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(short=short, ms=_milliseconds, signed=_signed, clock=_clock, count=_count)
    style = environment.get_template("report.css").render()
    part = ""
    if certificate is not None:
        part, css = certificate_section(certificate)
        style += css
    parted, css = divergence_section(record, environment)
    style += css
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = environment.get_template("report.html").render(
        view=make_view(record, found, live=live),
        found=found,
        style=style,
        style_digest=digest,
        below=BELOW,
        made_at=made_at,
        version=__version__,
        divergence=Markup(parted),  # noqa: S704  # made by a template that escapes every value
        certificate=Markup(part),  # noqa: S704  # made by a template that escapes every value
    )
    return printable(page)


def _milliseconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.1f}"


def _signed(value: float) -> str:
    return f"{value:+.1f} %".replace("-", "\N{MINUS SIGN}")


def _clock(value: datetime) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%S UTC")


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
