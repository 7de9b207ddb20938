"""What memory admission did is on the page, from evidence that may hold anything."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrate.receipts.completeness import Expected, judge_cell
from orchestrate.receipts.record import load_record
from orchestrate.receipts.verify import verify_record
from orchestrate.report.admission import account, release_rows
from orchestrate.report.html import render_page

MIB = 1 << 20
LEDGER = {
    "forward_ms": 2000.0, "warm_ms": 500.0, "release_ms": 60.0, "releases": 2, "reserve_ms": 40.0, "budget_ms": 100.0,
    "allows": True, "overhead": 0.03, "overhead_without_warm": 0.04, "warm_share": 0.25,
}  # fmt: skip
RELEASE = {
    "entry": "batch", "call": 7, "outcomes": ["split", "healthy"], "asked": [0], "released": True, "denied": None,
    "free_before_bytes": [10 * MIB, 0], "free_after_bytes": [74 * MIB, 0], "reserved_before_bytes": [90 * MIB, 0],
    "reserved_after_bytes": [26 * MIB, 0], "came_back_bytes": [64 * MIB, 0], "elapsed_ms": [21.5, 0.0],
    "alloc_retries_before": [0, 0], "alloc_retries_after": [0, 0],
    "budget_before": {**LEDGER, "release_ms": 38.5}, "budget_after": LEDGER,
    "then": {"action": "unsplit", "width": 1, "parts": 1},
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*RELEASE, *LEDGER]), inner, max_size=5)
    ),
    max_leaves=12,
)


def test_a_release_is_told_with_its_bytes_its_time_its_budget_and_what_came_next():
    (row,) = release_rows([RELEASE])
    assert (row.call, row.asked, row.made, row.then) == ("7", "0", "made", "unsplit")
    assert (row.free, row.came_back) == ("10.0 MiB → 74.0 MiB", "64.0 MiB")
    assert (row.took, row.budget) == ("21.5 ms", "38.5 ms → 60.0 ms of 100.0 ms")


def test_a_denied_release_says_why():
    (row,) = release_rows([{**RELEASE, "denied": "budget", "came_back_bytes": [], "elapsed_ms": []}])
    assert (row.made, row.came_back) == ("denied (budget)", "-")


def test_the_overhead_is_told_with_and_without_warm_up():
    told = account(LEDGER)
    assert (told.overhead, told.overhead_without_warm, told.warm_share) == ("3.00 %", "4.00 %", "25.00 %")
    assert account({}) is None


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(list(RELEASE)), JSON), st.dictionaries(st.sampled_from(list(LEDGER)), JSON))
def test_whatever_the_evidence_holds_becomes_text(release, ledger):
    (row,) = release_rows([release])
    assert all(isinstance(getattr(row, name), str) for name in row.__slots__)
    account(ledger)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JSON)
def test_the_judgement_takes_any_admission_that_a_row_may_have(admission):
    row = {"schema": "harness.evidence/1", "row": "warmup", "admission": admission}
    judgement = judge_cell([json.dumps(row).encode() + b"\n"], Expected("a|b|L1|tp1|cp1", "r", 1))
    assert all(isinstance(each, dict) for each in judgement.releases)


@pytest.fixture
def page(builder):
    run = builder()
    run.build()
    (path, *_) = sorted(run.run_dir.rglob("rows.jsonl"))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["admission"] = {"releases": [RELEASE]}
    rows[-1]["admission"] = {"ledger": LEDGER, "releases": []}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = load_record(run.run_dir)
    return render_page(record, verify_record(record), made_at=datetime(2026, 1, 3, tzinfo=UTC))


def test_releases_beyond_what_a_page_can_show_are_counted(builder):
    def many(_key, rows):
        rows[1]["admission"] = {"releases": [RELEASE] * 1003}
        return rows

    record = load_record(builder(rows_hook=many).build())
    page = render_page(record, verify_record(record), made_at=datetime(2026, 1, 3, tzinfo=UTC))
    assert "the first 1000 of 1003 (all are in the evidence)" in page


def test_the_page_shows_the_releases_of_a_cell_and_their_account(page):
    assert page.count("Memory admission</summary>") == 1
    for said in (
        "64.0 MiB",
        "38.5 ms → 60.0 ms of 100.0 ms",
        "without them it is 4.00 %",
        "2 cache releases cost 60.0 ms",
    ):
        assert said in page
