"""The page in a real browser: no console message, text present, no sideways scrolling on a phone or a desktop."""

import shutil
from datetime import UTC, datetime

import pytest

from orchestrate.receipts.record import load_record
from orchestrate.receipts.statement import Stage
from orchestrate.receipts.verify import verify_record
from orchestrate.report.html import render_page

WIDTHS = {"phone": 360, "desktop": 1280}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed (Debian packages chromium, chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, tmp_path):
    """Open the page of a run at a width; gives the browser."""

    def open_page(run_dir, width, scheme="light"):
        record = load_record(run_dir)
        page = tmp_path / "report.html"
        page.write_text(render_page(record, verify_record(record), made_at=datetime(2026, 1, 3, tzinfo=UTC)))
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        for kind in ("browser", "performance"):
            browser.get_log(kind)
        browser.get(page.as_uri())
        return browser

    return open_page


def long_labels(builder):
    labels = ("no_sharing", "uniform_depth_12", *(f"minimum_effective_span_{2**power + 1}" for power in range(8, 13)))
    return builder(labels=labels, keys=("cal-grpo-g8-long|Qwen/Qwen3.5-4B|L32|tp1|cp4",)).build()


RUNS = {
    "passed": lambda builder: builder().build(),
    "failed": lambda builder: builder("f", failed_cells=dict.fromkeys(builder().keys, "failed")).build(),
    "cut-short": lambda builder: builder().build(until=Stage.RUN),
    "long-labels": long_labels,
}


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
@pytest.mark.parametrize("make", RUNS.values(), ids=RUNS.keys())
def test_the_page_fits_its_screen_and_the_console_stays_empty(opened, builder, make, width):
    browser = opened(make(builder), width)
    scrolled, shown = browser.execute_script(
        "const page = document.scrollingElement; return [page.scrollWidth, page.clientWidth]"
    )
    assert scrolled <= shown
    assert shown <= width
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
def test_nothing_sticks_out_of_its_card_but_what_scrolls_inside(opened, builder, width):
    outside = """
        return [...document.querySelectorAll('section, .card')].flatMap(box => {
            const edge = box.getBoundingClientRect().right;
            return [...box.querySelectorAll('*')]
                .filter(e => !e.closest('.scroll, svg') && e.checkVisibility())
                .filter(e => e.getBoundingClientRect().right > edge + 0.5)
                .map(e => e.tagName + ' ' + e.textContent.slice(0, 40));
        })"""
    assert opened(long_labels(builder), width).execute_script(outside) == []


def test_no_caption_is_cut_off_on_a_phone(opened, builder):
    cut = """
        return [...document.querySelectorAll('.scroll caption')].filter(caption => {
            const range = document.createRange();
            range.selectNodeContents(caption);
            const edge = caption.closest('.scroll').getBoundingClientRect().right;
            return range.getBoundingClientRect().right > edge + 0.5;
        }).map(caption => caption.textContent)"""
    browser = opened(builder().build(), 360)
    assert browser.execute_script("return document.querySelectorAll('.scroll caption').length") > 1
    assert browser.execute_script(cut) == []


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
def test_the_reason_of_a_skip_is_in_sight_however_long_the_name_of_the_test(opened, builder, width):
    hidden = """
        const place = document.querySelector('.scroll');
        const long = 'tests/some/folder/test_some.py::test_' + 'of_something_with_a_long_name_'.repeat(9);
        place.innerHTML = `<table class="tests"><thead><tr><th>outcome</th><th>test</th><th>reason</th></tr></thead>
            <tbody><tr><td>skipped</td><td><code>${long}</code></td><td>no GPU here</td></tr></tbody></table>`;
        const edge = cell => cell.getBoundingClientRect().right;
        return edge(place.querySelector('td:last-child')) - edge(place)"""
    assert opened(builder().build(), width).execute_script(hidden) <= 0.5


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
def test_verdict_cells_and_proof_can_be_read(opened, builder, width):
    text = opened(builder().build(), width).find_element("tag name", "body").text
    for said in ("PASSED", "2 of 2", "Teardown: proven", "What they do not prove", "cal-grpo-tiny"):
        assert said in text


def test_the_page_asks_for_nothing_but_itself(opened, builder):
    browser = opened(builder().build(), 1280)
    asked = [entry["message"] for entry in browser.get_log("performance") if 'requestWillBeSent"' in entry["message"]]
    assert len(asked) == 1
    assert "report.html" in asked[0]


def test_no_label_of_a_plot_runs_into_its_value_on_a_phone(opened, builder):
    overlaps = """
        return [...document.querySelectorAll('.words')].filter(words => {
            const [left, right] = [...words.children].map(word => word.getBoundingClientRect());
            return left.right > right.left && left.bottom > right.top && right.width > 0;
        }).map(words => words.textContent)"""
    browser = opened(long_labels(builder), 360)
    assert browser.execute_script("return document.querySelectorAll('.words').length") == 17
    assert browser.execute_script(overlaps) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_schemes(opened, builder, scheme):
    """WCAG 2.1: at least 4.5 to 1 between text and what is behind it."""
    contrast = """
        const channels = colour => colour.match(/[\\d.]+/g).map(Number);
        const light = colour => channels(colour).slice(0, 3).map(v => v / 255)
            .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const behind = element => {
            for (let at = element; at; at = at.parentElement) {
                const colour = getComputedStyle(at).backgroundColor;
                if ((channels(colour)[3] ?? 1) > 0) return colour;
            }
        };
        return [...document.querySelectorAll('main *, footer *')]
            .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) && e.checkVisibility())
            .filter(e => !['title', 'desc'].includes(e.tagName))
            .map(e => {
                const style = getComputedStyle(e);
                const ink = e.closest('svg') ? style.fill : style.color;
                const [a, b] = [light(ink), light(behind(e))].sort((x, y) => y - x);
                return [(a + 0.05) / (b + 0.05), e.tagName, e.getAttribute('class'), e.textContent.slice(0, 30)];
            }).filter(found => found[0] < 4.5)"""
    made = builder()
    run_dir = builder("failed", failed_cells={made.keys[0]: "failed"}).build()
    assert opened(run_dir, 1280, scheme).execute_script(contrast) == []
