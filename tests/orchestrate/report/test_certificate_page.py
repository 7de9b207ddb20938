"""The pictures of a certificate: all there, self-contained, and text stays text."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from orchestrate.report.certificate_page import certificate_page, certificate_section
from orchestrate.report.certificate_plots import ablation_plot, regret_plot, scatters

GOLDEN = Path(__file__).parents[2] / "golden" / "certificate" / "certificate.json"
HOSTILE = "<script>alert(1)</script>\"'&{{ 7 * 7 }}"


@pytest.fixture
def certificate():
    return json.loads(GOLDEN.read_bytes())


def test_every_cell_with_a_choice_is_drawn_and_every_candidate_is_a_dot(certificate):
    plots = scatters(certificate)
    assert [plot.cell for plot in plots] == [cell["cell"] for cell in certificate["cells"]]
    for plot, cell in zip(plots, certificate["cells"], strict=True):
        assert [dot.label for dot in plot.dots] == [candidate["label"] for candidate in cell["candidates"]]
        assert sum(dot.selected for dot in plot.dots) == sum(dot.best for dot in plot.dots) == 1
        assert all(0 <= dot.x <= plot.side and 0 <= dot.y <= plot.side for dot in plot.dots)
    certificate["cells"][0]["candidates"] = certificate["cells"][0]["candidates"][:1]
    assert len(scatters(certificate)) == len(plots) - 1


def test_the_best_candidate_lies_at_the_left_and_the_selected_one_at_the_bottom(certificate):
    for plot in scatters(certificate):
        best = next(dot for dot in plot.dots if dot.best)
        selected = next(dot for dot in plot.dots if dot.selected)
        assert best.x == min(dot.x for dot in plot.dots)
        assert selected.y == max(dot.y for dot in plot.dots)


def test_regrets_are_bars_worst_first_in_proportion(certificate):
    certificate["selections"][3]["regret_pct"] = 8.0
    certificate["selections"][5]["regret_pct"] = 4.0
    plot = regret_plot(certificate)
    assert len(plot.bars) == 16
    assert [bar.regret_pct for bar in plot.bars] == sorted((bar.regret_pct for bar in plot.bars), reverse=True)
    assert (plot.bars[0].width, plot.bars[1].width) == (100.0, 50.0)
    assert [name for _, name in plot.limits] == ["2%", "5%"]


def test_what_was_left_out_is_drawn_in_proportion_and_says_whether_its_gates_held(certificate):
    first, second, *_ = certificate["ablations"]
    first["metrics"] |= {"p95_regret_pct": 11.0, "max_regret_pct": 22.0}
    first["gates_missed"] = ["p95_regret_pct"]
    second |= {"metrics": None, "gates_missed": None}
    plot = ablation_plot(certificate)
    assert len(plot.bars) == len(certificate["ablations"]) - 1
    bar = plot.bars[0]
    assert (bar.name, bar.width, bar.most, bar.held) == (f"{first['by']} {first['left_out']}", 50.0, 100.0, False)
    assert "p95 11.00%, most 22.00%" in bar.text
    assert [place for place, _ in plot.limits] == [round(500 / 22, 3), round(1000 / 22, 3)]
    assert ablation_plot(certificate | {"ablations": []}).bars == ()


def test_the_page_needs_nothing_from_anywhere_and_has_all_three_pictures(certificate):
    page = certificate_page(certificate)
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|img|iframe|object)|https?://|@import|url\(", page)
    for anchor in ("certificate", "regret", "predictions", "ablations", "limits"):
        assert f'id="{anchor}"' in page
    assert page.count("<figure>") == 16
    assert page.count("<svg") == 18
    assert page.count('<line class="most"') == len(certificate["ablations"])
    for row in certificate["ablations"]:
        assert f"{row['by']} {row['left_out']}" in page
    assert certificate["integer_table_sha256"] in page


def test_text_stays_text(certificate):
    certificate["table_id"] = certificate["selections"][0]["cell"] = HOSTILE
    certificate["cells"][0]["candidates"][0]["label"] = certificate["does_not_prove"][0] = HOSTILE
    certificate["selections"][0]["cell"] = certificate["cells"][0]["cell"]
    for html in (certificate_page(certificate), certificate_section(certificate)[0]):
        assert "<script" not in html
        assert "{{ 7 * 7 }}" in html
        tags = set()
        parser = HTMLParser()
        parser.handle_starttag = lambda tag, _attributes, tags=tags: tags.add(tag)
        parser.feed(html)
        assert "script" not in tags
