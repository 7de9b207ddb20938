"""The page says what the run says, for every kind of run, and no evidence becomes markup."""

import fcntl
import html.parser
import json
import shutil
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrate.cells.cell import slug
from orchestrate.cli import cli
from orchestrate.errors import UsageError
from orchestrate.receipts.completeness import Measured
from orchestrate.receipts.record import load_record
from orchestrate.receipts.statement import Stage
from orchestrate.receipts.verify import verify_record
from orchestrate.report.environment import environment
from orchestrate.report.html import render_page
from orchestrate.report.plots import Span, candidate_plot, time_line

MADE_AT = datetime(2026, 1, 3, tzinfo=UTC)
HOSTILE = "</style></title><script>alert(1)</script><img src=x onerror=alert(2)>&\"'\u202e"


def page_of(run_dir):
    record = load_record(run_dir)
    return render_page(record, verify_record(record), made_at=MADE_AT)


class Elements(html.parser.HTMLParser):
    """Every element with its attributes, and the text outside of the style sheet."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.parts, self.inside = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if "style" not in self.inside:
            self.parts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.parts).split())


def test_a_passed_run_shows_verdict_cells_times_teardown_and_what_is_not_proven(builder):
    text = Elements(page_of(builder().build())).text
    for said in (
        "Every expected cell complete",
        "2 of 2 expected cells are complete",
        "receipts hold",
        "Teardown: proven",
        "Look 2",
        "shared-memory files of this run",
        "no_sharing",
        "22.00 ms",
        "+25.7 %",
        "Automatic took +0.6 %",
        "no GPU evidence",
        "not signed",
        "Verdicts over time",
        "c0ffee",
    ):
        assert said in text


def test_each_round_is_a_dot_and_each_candidate_has_a_median(builder):
    made = builder()
    elements = Elements(page_of(made.build())).elements
    circles = [attributes for tag, attributes in elements if tag == "circle"]
    medians = [attributes for tag, attributes in elements if tag == "rect" and attributes.get("class") == "median"]
    assert len(circles) == len(made.keys) * (len(made.labels) + 1) * made.repeat
    assert len(medians) == len(made.keys) * (len(made.labels) + 1)
    assert all(0 <= float(circle["cx"].rstrip("%")) <= 100 for circle in circles)


def test_every_drawing_has_a_title_and_a_description_with_its_numbers(builder):
    page = page_of(builder().build())
    drawings = [attributes for tag, attributes in Elements(page).elements if tag == "svg" and "role" in attributes]
    assert len(drawings) == 10 + 2 * 4
    for drawing in drawings:
        title, description = drawing["aria-labelledby"].split()
        assert f'<title id="{title}">' in page
        assert f'<desc id="{description}">' in page
    assert "median 22.00 ms over 3 rounds, from 21.50 to 22.50 ms" in page
    assert "done, took 40s of 48s" in page


def test_a_failed_run_shows_which_cell_and_why(builder):
    made = builder()
    text = Elements(page_of(builder("failed", failed_cells={made.keys[0]: "failed"}).build())).text
    for said in ("A cell or check failed", "1 of 2 expected cells", "not complete · failed", "rank 2 exited with 1"):
        assert said in text
    assert "there is no end row" in text


@pytest.mark.parametrize("until", [stage for stage in Stage if stage is not Stage.CLOSURE])
def test_a_run_cut_short_at_any_stage_shows_what_is_missing(builder, until):
    text = Elements(page_of(builder().build(until=until))).text
    assert "The run was not closed" in text
    assert "closure: missing" in text
    later = list(Stage)[list(Stage).index(until) + 1 :]
    assert all(f"{stage}: missing" in text for stage in later)


def test_a_run_that_claims_passed_but_does_not_hold_never_looks_passed(builder):
    run_dir = builder().build()
    (run_dir / "evidence" / "node.json").write_text("{}")
    page = page_of(run_dir)
    assert "<h1>does not hold</h1>" in page
    assert "banner t-failed" in page
    assert "Teardown: not proven" in Elements(page).text
    assert "it was changed" in page


def test_a_refused_run_says_that_nothing_was_acquired(builder):
    def facts(stage, said):
        labels = {"verdict": "unsatisfiable", "test_verdict": "unsatisfiable", "exit_code": 78}
        return said | labels if stage is Stage.CLOSURE else said

    later = (Stage.ACQUIRE, Stage.RUN, Stage.COLLECT, Stage.TEARDOWN, Stage.CENSUS)
    text = Elements(page_of(builder(facts_hook=facts).build(skip=later))).text
    assert "Nothing was acquired" in text
    assert "Teardown: not needed" in text


def test_of_a_run_without_a_run_receipt_nothing_more_is_said_than_that(builder):
    def cancelled(stage, said):
        labels = {"verdict": "cancelled", "exit_code": 130, "test_verdict": "incomplete"}
        return said | labels if stage is Stage.CLOSURE else said

    later = (Stage.ACQUIRE, Stage.RUN, Stage.COLLECT, Stage.TEARDOWN, Stage.CENSUS)
    text = Elements(page_of(builder("refused", facts_hook=cancelled).build(skip=later))).text
    assert "No receipt says that any of its cells was started at all." in text
    assert "themselves said" not in text
    text = Elements(page_of(builder("lost").build(skip=(Stage.RUN,)))).text
    assert "No receipt says that any of its cells was started in its newest attempt." in text


def test_every_verdict_that_the_run_had_is_listed(builder):
    made = builder()
    made.build()
    made.close("a second look, weeks later")
    text = Elements(page_of(made.run_dir)).text
    assert "the run is over" in text
    assert "a second look, weeks later" in text


def test_what_the_census_still_found_is_shown(builder):
    def facts(stage, said):
        if stage is Stage.CENSUS:
            said["looks"][-1]["remaining"] = [{"kind": "process", "id": "4242"}]
            return said | {"remaining": ["process 4242"], "confirmed": False}
        changed = {"verdict": "teardown-unconfirmed", "exit_code": 70}
        return said | changed if stage is Stage.CLOSURE else said

    text = Elements(page_of(builder(facts_hook=facts).build())).text
    assert "Still there: process 4242" in text
    assert "may still exist" in text
    assert "The cells themselves said: passed" in text


def test_an_empty_folder_and_garbage_make_a_page_too(builder, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "there are no receipts" in page_of(tmp_path / "empty")
    run_dir = builder().build()
    for path in [run_dir / "plan.json", run_dir / "journal.jsonl", *(run_dir / "receipts").iterdir()]:
        path.write_bytes(b"\xff{")
    assert "does not have the content" in page_of(run_dir)


def hostile_run(builder):
    def rows(_key, made):
        made[0]["device"]["name"] = made[0]["workload"]["rows"] = HOSTILE
        made[0]["automatic"]["rule"] = HOSTILE
        return made

    def facts(stage, said):
        match stage:
            case Stage.TEARDOWN:
                return said | {"decided_because": HOSTILE, "steps": [dict.fromkeys(said["steps"][0], HOSTILE)]}
            case Stage.CENSUS:
                said["looks"][0]["asked"] = [{"what": HOSTILE, "answer": HOSTILE}]
                return said
            case Stage.CLOSURE:
                return said | {"reason": HOSTILE, "why": HOSTILE, "device": HOSTILE, "test_verdict": HOSTILE}
            case Stage.ACQUIRE:
                return said | {"node": {HOSTILE: {HOSTILE: HOSTILE}}}
            case _:
                return said

    made = builder(rows_hook=rows, facts_hook=facts, labels=("no_sharing", HOSTILE))
    made.build()
    made.note(HOSTILE)
    node = json.loads((made.run_dir / "evidence" / "node.json").read_text())
    node["cells"][0] |= {"status": HOSTILE, "reason": HOSTILE}
    (made.run_dir / "evidence" / "node.json").write_text(json.dumps(node))
    (made.run_dir / "evidence" / "<script>alert(3)<").write_text("")
    return made.run_dir


def test_hostile_text_stays_text(builder):
    page = page_of(hostile_run(builder))
    elements = Elements(page).elements
    tags = {tag for tag, _ in elements}
    assert not tags & {"script", "img", "iframe", "object", "form", "base"}
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]
    assert page.count("&lt;script&gt;") > 10
    assert HOSTILE not in page


def test_the_page_asks_for_nothing_and_allows_nothing(builder):
    page = page_of(builder().build())
    elements = Elements(page).elements
    policy = next(a["content"] for _, a in elements if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    links = [a[name] for _, a in elements for name in ("href", "src", "action", "data") if name in a]
    assert all(link.startswith(("#", "data:,")) for link in links)
    assert "url(" not in page
    assert "@import" not in page
    assert not [a for _, a in elements if "style" in a]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_in_any_fact_keeps_the_page_from_being_made(run_builder, tmp_path, data):
    stage = data.draw(st.sampled_from(list(Stage)))

    def facts(at, said):
        if at is stage:
            said[data.draw(st.sampled_from(sorted(said)))] = data.draw(JUNK)
        return said

    def rows(_key, made):
        row = data.draw(st.sampled_from(made[:1]))
        row[data.draw(st.sampled_from(sorted(row)))] = data.draw(JUNK)
        return made

    run_dir = tmp_path / "fuzzed"
    shutil.rmtree(run_dir, ignore_errors=True)
    assert page_of(run_builder(run_dir, facts_hook=facts, rows_hook=rows).build()).rstrip().endswith("</html>")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_in_the_plan_of_groups_does_either(run_builder, tmp_path, data):
    told = ("head", "base", "commit", "tree", "parents", "files", "left_out", "working_tree_differs")
    drawn = {name: data.draw(JUNK) for name in ("qualified", "tool", "groups", "cell_set")}
    qualified = data.draw(st.fixed_dictionaries(dict.fromkeys(told, JUNK)) | st.just(drawn["qualified"]))
    run_dir = tmp_path / "fuzzed"
    shutil.rmtree(run_dir, ignore_errors=True)
    run_builder(run_dir).build()
    record = load_record(run_dir)
    record.plan = {**record.plan, **drawn, "qualified": qualified, "payload": "groups"}
    (run_dir / "evidence/preflight.json").write_text(json.dumps(data.draw(JUNK)))
    assert dict(environment(record))["Tested source"]


def test_versions_come_from_the_evidence_and_what_does_not_apply_is_left_out(builder):
    made = builder()
    run_dir = made.build()
    told = {"python": "3.12.1", "torch": "2.9.0", "cuda": "13.0", "nccl": "2.27.5", "driver": "not-applicable"}
    (run_dir / "evidence/preflight.json").write_text(json.dumps(told))
    (run_dir / "evidence/packages.json").write_text(json.dumps({"a": "1", "b": "2"}))
    software = dict(dict(environment(load_record(run_dir)))["Software"])
    digest = software.pop("its digest")
    assert len(digest) == 64
    assert software == {
        "Python": "3.12.1", "torch": "2.9.0", "CUDA": "13.0", "NCCL": "2.27.5",
        "packages": "2, with their versions in evidence/packages.json",
    }  # fmt: skip


def test_the_regret_is_the_median_of_automatic_against_the_best_candidate():
    plot = candidate_plot(
        [
            Measured("a", "candidate", {0: 10.0, 1: 12.0, 2: 11.0}),
            Measured("b", "candidate", {0: 20.0, 1: 22.0, 2: 30.0}),
            Measured("c", "candidate", {}),
            Measured("b", "automatic", {0: 21.0, 1: 22.0, 2: 23.0}),
        ]
    )
    assert (plot.best, plot.regret) == ("a", 100.0)
    assert [strip.label for strip in plot.strips] == ["a", "b", "b"]
    assert [strip.median_ms for strip in plot.strips] == [11.0, 22.0, 22.0]


@pytest.mark.parametrize("times", [{0: 5.0}, {0: 5.0, 1: 5.0}, {0: 1e-9, 1: 1e9}])
def test_every_dot_lies_on_the_plot(times):
    plot = candidate_plot([Measured("a", "candidate", times)])
    strip = plot.strips[0]
    assert all(0 < place < 100 for place in (strip.median, strip.low, strip.high, *(dot[0] for dot in strip.dots)))
    assert plot.regret is None


def test_nothing_measured_is_no_plot():
    assert candidate_plot([Measured("a", "candidate", {})]) is None


def test_a_stage_keeps_its_place_on_the_line_and_a_short_one_stays_visible():
    def at(second):
        return MADE_AT.replace(second=second)

    line = time_line(
        [
            Span("one", at(0), at(10), "done"),
            Span("gone", None, None, "missing"),
            Span("two", at(20), at(20), "done"),
            Span("back", at(12), at(8), "done"),
        ]
    )
    assert [(row.left, row.width) for row in line.rows] == [(0, 50), (0, 0), (99.5, 0.5), (60, 0.5)]
    assert line.total == "20s"


def report(*arguments):
    return cli.main(["report", *map(str, arguments)], standalone_mode=False)


def test_the_command_writes_the_page_and_says_so(builder, tmp_path, capsys):
    run_dir, page = builder().build(), tmp_path / "page.html"
    assert report(run_dir, "-o", page, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "report": str(page), "run_id": run_dir.name, "verdict": "passed", "holds": True,
    }  # fmt: skip
    assert "<h1>passed</h1>" in page.read_text()


def test_a_run_with_a_living_owner_is_shown_as_running(builder, capsys):
    run_dir = builder().build(until=Stage.RUN)
    with (run_dir / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report(run_dir, "-o", "-")
        shown = capsys.readouterr().out
        assert "<h1>running</h1>" in shown
        assert "The run was not closed" not in shown
    report(run_dir, "-o", "-")
    assert "<h1>incomplete</h1>" in capsys.readouterr().out


def test_the_page_goes_to_standard_output_on_request(builder, capsys):
    run_dir = builder().build()
    assert report(run_dir, "-o", "-") == 0
    assert "<h1>passed</h1>" in capsys.readouterr().out
    with pytest.raises(UsageError, match="standard output"):
        report(run_dir, "-o", "-", "--json")


def test_a_place_that_can_not_be_written_is_an_error_with_a_remedy(builder, tmp_path):
    with pytest.raises(UsageError, match="can not be written"):
        report(builder().build(), "-o", tmp_path / "none" / "report.html")


def test_rows_of_a_linked_evidence_folder_are_not_read(builder, tmp_path):
    made = builder()
    run_dir = made.build()
    rows = run_dir / "evidence" / "cells" / slug(made.keys[0]) / "rows.jsonl"
    outside = tmp_path / "secret"
    shutil.move(rows, outside)
    rows.symlink_to(outside)
    assert "it left no evidence" in Elements(page_of(run_dir)).text


def rewrite_header(run_dir, key, **changes):
    path = run_dir / "evidence" / "cells" / slug(key) / "rows.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text(json.dumps(json.loads(first) | changes) + "\n" + "".join(others))


@pytest.mark.parametrize("steering", ["\u202e", "\u0000", "\u2028", "\u2066", "\x1b", "\u200b"])
def test_no_character_of_the_evidence_steers_how_others_are_shown(builder, tmp_path, steering):
    made = builder()
    run_dir = made.build()
    rewrite_header(run_dir, made.keys[0], dtype=f"odd{steering}type")
    output = tmp_path / "page.html"
    assert cli.main(["report", str(run_dir), "-o", str(output)], standalone_mode=False) == 0
    text = output.read_text(encoding="utf-8")
    assert "odd?type" in text
    assert steering not in text


def test_evidence_with_half_a_character_is_refused(builder, tmp_path):
    made = builder()
    run_dir = made.build()
    rewrite_header(run_dir, made.keys[0], dtype="odd\ud800type")
    assert "surrogates not allowed" in Elements(page_of(run_dir)).text


def test_a_page_that_can_not_be_written_leaves_the_old_one_whole(builder, tmp_path, monkeypatch):
    run_dir, output = builder().build(), tmp_path / "page.html"
    output.write_text("the old page")

    def full(_path, _data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(UsageError, match="can not be written"):
        cli.main(["report", str(run_dir), "-o", str(output)], standalone_mode=False)
    assert [each.name for each in tmp_path.glob("*.html*")] == ["page.html"]
    assert output.read_text() == "the old page"


@pytest.mark.parametrize("time", [5e-324, 1e-300, 1e9])
def test_equal_times_of_any_size_are_drawn(time):
    plot = candidate_plot([Measured("one", "candidate", {0: time, 1: time})])
    assert plot is not None
    assert plot.strips[0].median == 50.0


@pytest.mark.parametrize(("dirty", "said"), [(True, "with changes not committed"), (None, "and perhaps changes")])
def test_the_banner_names_no_commit_as_if_nothing_was_changed(builder, dirty, said):
    assert f"c0ffee000000 {said}" in Elements(page_of(builder(dirty=dirty).build())).text


def test_the_banner_of_a_clean_tree_names_the_commit_alone(builder):
    text = Elements(page_of(builder().build())).text
    assert "with changes" not in text
    assert "perhaps changes" not in text
