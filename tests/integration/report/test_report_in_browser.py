"""The report as its reader sees it, in a real browser without a network."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.campaign import analyse
from harness.analysis.report import report_of
from harness.results.layout import metric_files
from harness.results.manifest import Status
from harness.spec import Sharing
from tests.integration.report.browser import Page, browser, chromium
from tests.support import forked
from tests.unit.results.synthetic import Shape, write_campaign, write_experiment

pytestmark = pytest.mark.long

PLOTS = """(() => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  return [...document.querySelectorAll("figure.chart")].map(figure => {
    const panels = figure.querySelector(".panels"), box = panels.getBoundingClientRect();
    return {alt: panels.getAttribute("aria-description"), shown: [box.width, box.height],
            text: panels.querySelectorAll("text").length};
  });
})()"""
# Between the margins of a sheet lying on its side, 273 mm.
A4_PX = 1031
CUT = (
    "[...document.querySelectorAll('.scroll, pre, table, figure')].filter(box => box.scrollWidth > box.clientWidth + 1"
    " || box.getBoundingClientRect().right > innerWidth + 1).map(box => box.outerHTML.slice(0, 80))"
)
SIDEWAYS = "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"
BOXES_SIDEWAYS = (
    "[...document.querySelectorAll('.scroll, .pan')].filter(box => box.scrollWidth > box.clientWidth + 1)"
    ".map(box => box.outerHTML.slice(0, 120))"
)
WORDS_CUT = """[...document.querySelectorAll('.pan text')].filter(text => {
  const own = text.getBoundingClientRect(), frame = text.closest('.pan').getBoundingClientRect();
  return own.width && (own.left < frame.left - 1 || own.right > frame.right + 1);
}).map(text => text.textContent)"""
SMALLEST_LETTERS_PX = """Math.min(...[...document.querySelectorAll('.panels text')].map(text =>
  parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a).filter(px => px > 0))"""
SWATCHES = "Math.max(0, ...[...document.querySelectorAll('.swatch')].map(mark => mark.getBoundingClientRect().height))"
TABLES_SIDEWAYS = (
    "Math.max(0, ...[...document.querySelectorAll('.scroll')].map(box => box.scrollWidth - box.clientWidth))"
)
TEXT = "document.body.innerText"


def finished(folder: Path) -> Path:
    return write_campaign(
        folder, workloads=["resnet50", "whisper"], replicas=[1, 3, 8], repeats=2, shape=Shape(record_s=20)
    )


def without_gpu_and_half_done(folder: Path) -> Path:
    return write_campaign(folder, replicas=[1, 3], repeats=2, shape=Shape(record_s=20, gpu=False), finished=3)


def invalid_and_damaged(folder: Path) -> Path:
    write_campaign(folder, replicas=[1, 3], repeats=3, shape=Shape(record_s=20), finished=2)
    write_experiment(folder, "resnet50", 1, 3, Shape(record_s=20, status=Status.INVALID))
    write_experiment(folder, "resnet50", 3, 1, Shape(record_s=20, status=Status.DEGRADED))
    damaged = write_experiment(folder, "resnet50", 3, 2, Shape(record_s=20))
    path = metric_files(damaged)["io_psi"]
    path.write_text(path.read_text().replace(",0.4,", ",0.5,", 1))
    return folder


def not_begun(folder: Path) -> Path:
    return write_campaign(folder, replicas=[1], repeats=1, finished=0)


def two_modes(folder: Path) -> Path:
    shape = Shape(record_s=10)
    write_campaign(folder, replicas=[1, 3], repeats=2, shape=shape, sharing=[Sharing.TIME_SLICING, Sharing.MPS])
    write_experiment(folder, "resnet50", 3, 3, replace(shape, sharing=Sharing.MPS, status=Status.INVALID))
    return folder


CASES: dict[str, tuple[Callable[[Path], Path], int, list[str]]] = {
    "finished": (finished, 1 + 2 + 1 + 12, ["12 of 12", "2.6", "random weights"]),
    "half": (without_gpu_and_half_done, 1 + 1 + 3, ["3 of 4", "not begun yet", "no NVIDIA driver", "One run only"]),
    "damaged": (invalid_and_damaged, 1 + 1 + 4, ["INVALID and left out", "DEGRADED and included", "DAMAGED", "io_psi"]),
    "empty": (not_begun, 0, ["0 of 1", "no answer", "None is finished yet"]),
}


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    program = chromium()
    if program is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium): the report is not looked at in a browser")
    with browser(program) as opened:
        yield opened


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The report of a case, or of two modes with a run that does not count (drawn once: that takes seconds)."""
    place = tmp_path_factory.mktemp("reports")
    made = {name: make for name, (make, _, _) in CASES.items()} | {"modes": two_modes}
    return functools.cache(lambda name: report_of(analyse(made[name](place / name))))


@pytest.mark.parametrize("case", CASES)
def test_every_plot_is_seen_and_nothing_complains(case: str, page: Page, reports: Callable[[str], Path]) -> None:
    _, plots, words = CASES[case]
    report = reports(case)
    page.call("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)
    page.open(report.as_uri())
    found = page.evaluate(PLOTS)
    assert len(found) == plots
    for plot in found:
        assert min(plot["shown"]) > 80, plot
        assert plot["text"] > 10, plot
        assert plot["alt"]
    assert page.evaluate(SWATCHES) < 20, "the marks of a legend are as high as its text"
    assert page.evaluate("document.images.length") == 0
    text = page.evaluate(TEXT)
    for word in words:
        assert word in text
    assert page.evaluate(SIDEWAYS) <= 0
    assert page.evaluate(TABLES_SIDEWAYS) <= 0
    assert page.errors == []
    assert page.requests == [report.as_uri()]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of ``harness compare``, by the command itself."""
    place = tmp_path_factory.mktemp("comparison")
    modes = [Sharing.EXCLUSIVE, Sharing.TIME_SLICING, Sharing.MPS]
    folder = write_campaign(
        place / "modes",
        workloads=["resnet50", "whisper"],
        replicas=[1, 3],
        repeats=2,
        shape=Shape(record_s=15),
        sharing=modes,
    )
    path = place / "comparison.html"
    words = ["compare", str(folder), "--html", str(path), "--latency-limit-ms", "12", "--price-per-gpu-hour", "3"]
    words += ["--currency", "USD"]
    done = forked.harness(*words)
    assert done.returncode == 0, done.stderr
    return path


def test_the_six_questions_are_seen_and_nothing_complains(comparison: Path, page: Page) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)
    page.open(comparison.as_uri())
    found = page.evaluate(PLOTS)
    assert len(found) >= 5
    for plot in found:
        assert min(plot["shown"]) > 80, plot
        assert plot["alt"]
    assert page.evaluate("document.querySelectorAll('section .takeaway').length") == 5
    order = page.evaluate("[...document.querySelectorAll('main section')].map(section => section.id)")
    assert order[:3] == ["modes", "choosing", "cost"]
    assert order[-3:] == ["tests", "unlike", "how"]
    links = page.evaluate("[...document.querySelectorAll('nav a')].map(link => [link.hash.slice(1), link.innerText])")
    headings = page.evaluate(
        "[...document.querySelectorAll('main section')].map(s => [s.id, s.querySelector('h2').innerText])"
    )
    assert links == headings, "navigation says what the headings say"
    assert page.evaluate(SIDEWAYS) <= 0
    assert page.evaluate(TABLES_SIDEWAYS) <= 0
    assert page.errors == []
    assert page.requests == [comparison.as_uri()]


SEEN = """(selector => [...document.querySelectorAll(selector)].filter(item => {
  const box = item.getBoundingClientRect();
  return box.width > 0 && box.left >= 0 && box.right <= innerWidth && box.bottom <= innerHeight;
}).map(item => item.innerText))"""
SCREENS = {"desktop": (1280, 800, False), "telephone": (390, 844, True)}


@pytest.mark.parametrize("screen", SCREENS)
def test_the_first_screen_holds_the_answer(comparison: Path, page: Page, screen: str) -> None:
    width, height, mobile = SCREENS[screen]
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
    page.open(comparison.as_uri())
    seen = page.evaluate(f"{SEEN}('.sentence, .numbers > div, #decision')")
    assert len(seen) == 5, "the sentence, three numbers and the picture"
    assert re.match(r"Use MPS if all replicas are yours: \+|No clear winner: resnet50, throughput", seen[0])
    assert all(re.search(r"[+\N{MINUS SIGN}]\d.* to .*%", number) for number in seen[1:4])
    unreachable = "[...document.querySelectorAll('.scroll, pre')].filter(box => box.tabIndex < 0).length"
    assert page.evaluate(unreachable) == 0, "what scrolls sideways cannot be scrolled by keyboard"


PUBLISHED = Path(__file__).parents[3] / "examples" / "h200" / "comparison.html"
MOST_WORDS, TALLEST_PX = 2600, 7000


@pytest.mark.parametrize("screen", SCREENS)
def test_the_published_comparison_is_short_and_begins_with_the_answer(page: Page, screen: str) -> None:
    width, height, mobile = SCREENS[screen]
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
    page.open(PUBLISHED.as_uri())
    assert len(page.evaluate(f"{SEEN}('.sentence, .numbers > div, #decision')")) == 5
    assert len(page.evaluate(TEXT).split()) <= MOST_WORDS
    if not mobile:
        assert page.evaluate("document.documentElement.scrollHeight") <= TALLEST_PX
        small = (
            "[...document.querySelectorAll('main *')].filter(item => item.checkVisibility() && !item.closest('svg, .unseen')"
            " && [...item.childNodes].some(node => node.nodeType == 3 && node.textContent.trim())"
            " && parseFloat(getComputedStyle(item).fontSize) < 14).map(item => item.outerHTML.slice(0, 80))"
        )
        assert page.evaluate(small) == []


@pytest.mark.parametrize("screen", SCREENS)
def test_the_first_screen_of_the_report_holds_the_answer_and_what_weakens_it(
    reports: Callable[[str], Path], page: Page, screen: str
) -> None:
    width, height, mobile = SCREENS[screen]
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
    page.open(reports("half").as_uri())
    answer, weak = page.evaluate(f"{SEEN}('.answers p, header .missing')")
    assert re.search(r"3 replicas serve [\d,]+ requests/s; .* one replica, each at", answer)
    assert "1 of 4 experiments are missing" in weak
    page.open(reports("modes").as_uri())
    answer, *_, weak = page.evaluate(f"{SEEN}('.answers p, header .missing')")
    assert re.search(r"Use MPS if all replicas are yours: \+\d|No clear winner: throughput", answer)
    assert re.search("1 of 9 runs are INVALID and left out; .*two runs only", weak)


def test_the_report_goes_from_the_answer_to_the_table_to_the_curves(reports: Callable[[str], Path], page: Page) -> None:
    page.open(reports("modes").as_uri())
    tops = page.evaluate(
        "['.answers', 'header .missing', '.facts', '#scaling table', '#curves', '#words', '#caveats', '#experiments']"
        ".map(where => document.querySelector(where).getBoundingClientRect().top)"
    )
    assert tops == sorted(tops)
    assert page.evaluate("document.querySelector('#scaling').nextElementSibling.id") == "curves"


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "none"])
@pytest.mark.parametrize("which", ["comparison", "report"])
def test_a_thumb_reads_it_without_scrolling_sideways(
    comparison: Path, page: Page, reports: Callable[[str], Path], which: str, *, scripts: bool
) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    page.call("Emulation.setScriptExecutionDisabled", value=not scripts)
    try:
        page.open((comparison if which == "comparison" else reports("finished")).as_uri())
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert (page.evaluate("document.querySelectorAll('button').length") > 0) == scripts
    page.evaluate(PLOTS)
    assert page.evaluate(SIDEWAYS) <= 0
    assert page.evaluate(BOXES_SIDEWAYS) == []
    assert page.evaluate(WORDS_CUT) == []
    assert page.evaluate(SMALLEST_LETTERS_PX) >= 8
    unnamed = (
        "[...document.querySelectorAll('.stack td')].filter(cell => cell.getClientRects().length"
        ' && !/^"[^"]+"$/.test(getComputedStyle(cell, \'::before\').content)).length'
    )
    assert page.evaluate(unnamed) == 0
    more = "[...document.querySelectorAll('.all')].filter(button => button.getClientRects().length)"
    for _ in range(page.evaluate(f"{more}.length")):
        page.evaluate(f"{more}[0].click()")
    hidden = "[...document.querySelectorAll('tbody tr')].filter(row => !row.getClientRects().length).length"
    assert page.evaluate(hidden) == 0


@pytest.mark.parametrize("which", ["comparison", "report"])
def test_nothing_is_clipped_on_paper(comparison: Path, page: Page, reports: Callable[[str], Path], which: str) -> None:
    path = comparison if which == "comparison" else reports("finished")
    page.call("Emulation.setEmulatedMedia", media="print")
    page.call("Emulation.setDeviceMetricsOverride", width=A4_PX, height=700, deviceScaleFactor=1, mobile=False)
    try:
        page.open(path.as_uri())
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("document.querySelectorAll('details:not([open])').length") == 0
        assert page.evaluate(SIDEWAYS) <= 0
        assert page.evaluate(CUT) == []
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("document.querySelectorAll('details[open]').length") == 0
    finally:
        page.call("Emulation.setEmulatedMedia", media="")


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_chart_can_be_read_in_light_and_dark(comparison: Path, page: Page, scheme: str) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    try:
        page.open(comparison.as_uri())
        colours = page.evaluate(
            "[...'01234567'].map(n => `--series-${n}`).concat('--ink', '--soft', '--faint').map(name => {"
            "document.body.style.outlineColor = `var(${name})`; return getComputedStyle(document.body).outlineColor})"
        )
        paper = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        for colour in colours:
            lighter, darker = sorted((luminance(colour), paper), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 3, (colour, scheme)
        drawn = page.evaluate("getComputedStyle(document.querySelector('.pan .s0 .mk')).fill")
        assert drawn in colours[:8]
        label = page.evaluate("getComputedStyle(document.querySelector('.pan text')).fill")
        assert (luminance(label) > 0.5) is (scheme == "dark")
    finally:
        page.call("Emulation.setEmulatedMedia", features=[])


FIGURE = "document.querySelector('#comparison-speed')"


def test_a_point_says_its_value_by_mouse_and_by_keyboard(comparison: Path, page: Page) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
    page.open(comparison.as_uri())
    panel = json.loads(page.evaluate(f"{FIGURE}.querySelector('script').textContent"))[0]
    shown = {series["s"]: series for series in panel["series"] if "low" in series}
    alone, three = shown[0], shown[2]
    table = page.evaluate("document.querySelector('#modes tbody tr').innerText")
    assert re.search(rf"\b{alone['y'][0]:.0f}\s?±", table), "what is plotted is what the table says"
    drawn = page.evaluate(
        f"[...{FIGURE}.querySelectorAll('.s2 [transform]')].map(mark => {{"
        "const {e, f} = mark.transform.baseVal.consolidate().matrix; return [e, f]})"
    )
    at = [
        start + (three[axis][1] - low) / (high - low) * (end - start)
        for axis in "xy"
        for low, high, start, end, _ in [panel[axis]]
    ]
    assert min(math.dist(at, mark) for mark in drawn) < 0.1, "the values lie where the marks are"
    page.evaluate(f"{FIGURE}.scrollIntoView()")
    place = f"new DOMPoint({at[0]}, {at[1]}).matrixTransform({FIGURE}.querySelector('.panels svg').getScreenCTM())"
    x, y = page.evaluate(f"(point => [point.x, point.y])({place})")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    by_mouse = page.evaluate(f"{FIGURE}.querySelector('.tip').innerText").splitlines()
    assert by_mouse[:3] == ["MPS", "replicas: 3", f"resnet50: requests/s: {three['y'][1]:.0f}"]
    page.evaluate(f"{FIGURE}.querySelector('.pan').focus()")
    for key, code in (("ArrowRight", 39), ("Escape", 27), ("ArrowRight", 39)):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code)
    spoken = page.evaluate(f"{FIGURE}.querySelector('.tip').innerText")
    assert spoken.splitlines()[1] == "replicas: 1"
    assert f"95% interval: {alone['low'][0]:.0f} to {alone['high'][0]:.0f}" in spoken


def test_a_series_is_hidden_a_chart_enlarged_and_a_table_sorted(comparison: Path, page: Page) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
    page.open(comparison.as_uri())
    page.evaluate(f"{FIGURE}.scrollIntoView()")
    visible = f"[...{FIGURE}.querySelectorAll('.pan .s1')].filter(part => part.getClientRects().length).length"
    button = f"{FIGURE}.querySelector('[data-series=s1] button')"
    assert page.evaluate(visible) > 0
    for expected in ("false", "true"):
        page.evaluate(f"{button}.click()")
        assert page.evaluate(f"{button}.getAttribute('aria-pressed')") == expected
        assert (page.evaluate(visible) > 0) is (expected == "true")
    width = f"{FIGURE}.querySelector('.panels svg').getBoundingClientRect().width"
    before = page.evaluate(width)
    page.evaluate(f"{FIGURE}.querySelector('.tool').click()")
    assert page.evaluate(width) > 1.5 * before
    assert page.evaluate(f"{FIGURE}.querySelector('.pan').scrollWidth <= {FIGURE}.querySelector('.pan').clientWidth"), (
        "titles and axes stay in sight"
    )
    page.evaluate(f"{FIGURE}.querySelector('.tool').click()")
    assert page.evaluate(width) == pytest.approx(before)
    column = "[...document.querySelectorAll('#cost tbody tr')].map(row => +row.cells[3].dataset.value)"
    header = "document.querySelectorAll('#cost thead th')[3]"
    for order, reverse in (("ascending", False), ("descending", True)):
        page.evaluate(f"{header}.querySelector('button').click()")
        assert page.evaluate(f"{header}.getAttribute('aria-sort')") == order
        found = page.evaluate(column)
        assert found == sorted(found, reverse=reverse)
    assert len(set(found)) > 3
    assert page.errors == []


def test_without_scripts_the_page_is_whole(comparison: Path, page: Page) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(comparison.as_uri())
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert page.evaluate("document.querySelectorAll('button').length") == 0
    assert [plot for plot in page.evaluate(PLOTS) if not plot["alt"] or min(plot["shown"]) < 80] == []
    keys = page.evaluate(f"[...{FIGURE}.querySelectorAll('.keys li')].map(key => key.innerText)")
    assert keys == ["exclusive", "time-slicing", "MPS"]


def test_the_browser_would_notice(page: Page, tmp_path: Path) -> None:
    """The checks above can fail: a page with an error, a request and a broken plot is caught."""
    bad = tmp_path / "bad.html"
    bad.write_text('<img src="absent.png"><script>console.error("wrong"); undefinedFunction()</script>')
    page.open(bad.as_uri())
    assert len(page.errors) >= 2
    assert any(request.endswith("absent.png") for request in page.requests)
    assert page.evaluate("document.images[0].naturalWidth") == 0
