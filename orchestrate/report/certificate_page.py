"""A certificate as one self-contained HTML page: no script, no request to anywhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from orchestrate.report.certificate_plots import ablation_plot, regret_plot, scatters

__all__ = ["certificate_page", "certificate_section"]


def certificate_page(certificate: Mapping[str, Any]) -> str:
    """The page of `certificate` as HTML text. What the certificate holds is text on it, never markup."""
    environment = _environment()
    style = environment.get_template("report.css").render() + environment.get_template("certificate.css").render()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page: str = environment.get_template("certificate.html").render(
        style=style, style_digest=digest, **_view(certificate)
    )
    return page


def certificate_section(certificate: Mapping[str, Any]) -> tuple[str, str]:
    """The pictures and tables of `certificate` as HTML and the CSS they need, for the page of a run."""
    environment = _environment()
    part: str = environment.get_template("certificate_part.html").render(**_view(certificate))
    css: str = environment.get_template("certificate.css").render()
    return part, css


def _view(certificate: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "certificate": certificate,
        "scatters": scatters(certificate),
        "regrets": regret_plot(certificate),
        "left_out": ablation_plot(certificate),
        "blocks": [("all cells", "all"), ("held out", "held_out"), ("training", "train")],
    }


def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  # slow, and only pages need it

    environment = Environment(
        loader=PackageLoader("orchestrate.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(pct=_percent, share=_share, figure=_figure)
    return environment


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}%".replace("-", "\N{MINUS SIGN}")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}%"


def _figure(value: float | None) -> str:
    return "nothing measured" if value is None else f"{value:.4g}"
