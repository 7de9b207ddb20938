"""Where the ranks of a run parted, on its page."""

import re
import shutil
from datetime import UTC, datetime

import pytest

from harness.trace.format import TraceWriter
from orchestrate.cells.cell import slug
from orchestrate.receipts.record import load_record
from orchestrate.receipts.verify import verify_record
from orchestrate.report.html import render_page

WORLD = 4


def write_traces(folder, *, parted=True, caller="train.py"):
    """Four ranks at an exchange; rank 3 runs another layout from the third forward on, and all wait."""
    for rank in range(WORLD):
        writer = TraceWriter(folder, rank, world_size=WORLD, chunk_slots=256)
        group = writer.group("cp", range(WORLD))
        at, sequence = 1_000, 0
        for forward in range(4):
            odd = parted and rank == 3 and forward == 3
            layout = "minimum_effective_span_129" if forward < 3 or odd else "no_sharing"
            context = writer.context(layout, "measure")
            rows = 1804 if layout == "no_sharing" else 7216
            for op in ("all_gather_single", "all_to_all_single", "all_reduce"):
                exchange = op == "all_to_all_single"
                call = writer.signature(
                    op=op, input_sizes=[[4 * rows, 64] if exchange else [8]], input_dtypes=["bfloat16"],
                    output_sizes=[[4 * rows, 64] if exchange else [32] if op == "all_gather_single" else [8]],
                    send_splits=[rows] * 4 if exchange else None, recv_splits=[rows] * 4 if exchange else None,
                    tag=f"attention.{op}", stack=writer.stack([(caller, 88, "forward"), ("step.py", 12, "main")]),
                )  # fmt: skip
                record = writer.begin(
                    group, call, sequence=sequence, start_ns=at + rank, context=context, forward=forward
                )
                if parted and forward == 3 and exchange:
                    break
                writer.complete(record, at + 500 + 10 * rank)
                at, sequence = at + 1_000, sequence + 1


@pytest.fixture
def parted_run(builder):
    def make(**options):
        made = builder()
        run_dir = made.build()
        write_traces(run_dir / "evidence" / "cells" / slug(made.keys[0]) / "trace", **options)
        return run_dir

    return make


def page_of(run_dir):
    record = load_record(run_dir)
    return render_page(record, verify_record(record), made_at=datetime(2026, 1, 3, tzinfo=UTC))


def test_the_page_shows_the_time_line_and_both_records(parted_run):
    page = page_of(parted_run())
    part = page[page.index('<section id="divergence">') :]
    assert "rank 0 expects 1,804 rows from rank 3, rank 3 sends 7,216" in part
    assert "split at all_to_all_single #10 of group cp, forward 3" in part
    # The last eight records of each rank up to the disagreement, and that one.
    assert part.count("records around the disagreement") == WORLD
    assert part.count("<title>all_to_all_single") == 3 * WORLD
    assert len(re.findall(r'class="op\d stuck here"', part)) == WORLD
    assert "rank 3 (odd)" in part
    assert part.count("train.py:88 in forward") == 2
    assert "in forward 3 ranks 0, 1 and 2 ran no_sharing, rank 3 ran minimum_effective_span_129" in part


def test_a_run_whose_traces_agree_has_no_such_part(parted_run):
    assert "divergence" not in page_of(parted_run(parted=False))


def test_a_cell_that_was_only_stopped_has_no_such_part(builder):
    """Where a job is ended, some ranks have come further than others."""
    made = builder()
    run_dir = made.build()
    folder = run_dir / "evidence" / "cells" / slug(made.keys[0]) / "trace"
    for rank in range(WORLD):
        writer = TraceWriter(folder, rank, world_size=WORLD, chunk_slots=256)
        call = writer.signature(op="all_reduce", input_sizes=[[8]])
        for sequence in range(4 if rank == 3 else 3):
            record = writer.begin(writer.group("cp", range(WORLD)), call, sequence=sequence, start_ns=100 * sequence)
            if sequence < 3:
                writer.complete(record, 100 * sequence + 50)
    assert "divergence" not in page_of(run_dir)


def test_a_run_without_traces_has_no_such_part(builder):
    assert "divergence" not in page_of(builder().build())


def test_what_a_trace_holds_is_text_and_never_markup(parted_run):
    page = page_of(parted_run(caller="<script>alert(1)</script>\u202e"))
    assert "<script>" not in page
    assert "\u202e" not in page


def test_a_damaged_trace_does_not_keep_the_page_from_being_made(parted_run):
    run_dir = parted_run()
    for path in (run_dir / "evidence" / "cells").glob("*/trace/*"):
        path.write_bytes(b"\0" * 64)
    assert "</html>" in page_of(run_dir)


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_part_fits_its_screen(parted_run, tmp_path, tmp_path_factory, width, scheme):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed (Debian packages chromium, chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path_factory.mktemp('p')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        page = tmp_path / "report.html"
        page.write_text(page_of(parted_run()))
        browser.get(page.as_uri())
        scrolled, shown = browser.execute_script(
            "const page = document.scrollingElement; return [page.scrollWidth, page.clientWidth]"
        )
        assert scrolled <= shown <= width
        assert browser.get_log("browser") == []
        fills = browser.execute_script(
            "return [...document.querySelectorAll('#divergence svg rect.here')].map(e => getComputedStyle(e).fill)"
        )
        assert len(fills) == WORLD
        assert "rgb(0, 0, 0)" not in fills  # the colours of the style sheet are there
    finally:
        browser.quit()
