"""The HTML report in a real browser, opened from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, Page

from advisor.evidence import Evidence
from advisor.findings import Findings
from advisor.report import page
from advisor.report.details import details
from advisor.trace import read_trace

pytestmark = pytest.mark.browser

Open = Callable[..., Page]


@pytest.fixture
def opened(chromium: Browser, tmp_path: Path) -> Iterator[Open]:
    """Open a page of a document; what it asked for and complained of are `requests` and `complaints` of the page."""
    contexts = []

    def open_(text: str, *, width: int = 1200, dark: bool = False, script: bool = True) -> Page:
        file = tmp_path / "report.html"
        file.write_text(text, encoding="utf-8")
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=script,
            offline=True,
        )
        contexts.append(context)
        shown = context.new_page()
        shown.requests, shown.complaints = [], []  # type: ignore[attr-defined]
        shown.on("request", lambda request: shown.requests.append(request.url))  # type: ignore[attr-defined]
        shown.on("console", lambda message: shown.complaints.append(message.text))  # type: ignore[attr-defined]
        shown.on("pageerror", lambda error: shown.complaints.append(str(error)))  # type: ignore[attr-defined]
        shown.goto(file.as_uri())
        return shown

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def real(shared_traces: Path) -> Callable[[Findings], str]:
    """The text of a page with the picture and tables of a real trace."""
    shown = details(Evidence.from_trace(read_trace(shared_traces / "v100-resnet50-workers0.pt.trace.json.gz")))
    return lambda document: page.render(document, shown)


@pytest.mark.parametrize("name", ["rich_document", "tried_document"])
def test_it_loads_nothing_and_complains_of_nothing(
    opened: Open, real: Callable[[Findings], str], name: str, request: pytest.FixtureRequest
) -> None:
    shown = opened(real(request.getfixturevalue(name)))
    shown.wait_for_timeout(200)
    assert [url for url in shown.requests if not url.endswith("/report.html")] == []  # type: ignore[attr-defined]
    assert shown.complaints == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["hostile_document", "hostile_outcome"])
def test_texts_of_others_do_not_run(opened: Open, name: str, request: pytest.FixtureRequest) -> None:
    shown = opened(page.render(request.getfixturevalue(name)))
    shown.wait_for_timeout(200)
    assert shown.title() not in ("owned", "1")
    assert shown.locator("img").count() == 0


def test_a_script_that_got_in_would_not_run_either(opened: Open, rich_document: Findings) -> None:
    text = page.render(rich_document).replace("</main>", "<script>document.title = 'owned'</script></main>")
    assert opened(text).title() != "owned"


_LISTEN = "() => { document.addEventListener('copy', () => { window.copied = document.activeElement.value; }); }"


def test_the_copy_button_gives_the_diff_byte_by_byte(opened: Open, rich_document: Findings) -> None:
    shown = opened(page.render(rich_document))
    shown.evaluate(_LISTEN)
    shown.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    shown.get_by_role("button", name="Copy the diff").click()
    _until(shown, "window.copied !== undefined")
    assert shown.evaluate("window.copied") == rich_document.findings[0].fix.diff
    assert shown.locator("button.copy").inner_text() == "Copied"


def test_where_the_clipboard_is_forbidden_the_diff_is_copied_the_old_way(opened: Open, rich_document: Findings) -> None:
    shown = opened(page.render(rich_document))
    shown.evaluate(_LISTEN)
    shown.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }")
    shown.get_by_role("button", name="Copy the diff").click()
    _until(shown, "window.copied !== undefined")
    assert shown.evaluate("window.copied") == rich_document.findings[0].fix.diff


def _until(shown: Page, condition: str) -> None:
    """Wait for it. The page's own policy forbids the evaluation that Playwright's waiting needs."""
    for _ in range(100):
        if shown.evaluate(f"() => {condition}"):
            return
        shown.wait_for_timeout(50)
    raise AssertionError(f"never: {condition}")


def _view(shown: Page) -> tuple[float, float]:
    view = shown.evaluate("document.querySelector('.canvas').stepPicture.view()")
    return view["from"], view["to"]


def _settled(shown: Page) -> None:
    shown.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_hovering_a_box_tells_its_name_and_time(
    opened: Open, real: Callable[[Findings], str], rich_document: Findings
) -> None:
    shown = opened(real(rich_document))
    frame = shown.locator(".canvas")
    frame.scroll_into_view_if_needed()
    box = frame.bounding_box()
    at = shown.evaluate("document.querySelector('.canvas').stepPicture.position(0, 0)")
    assert box
    shown.mouse.move(box["x"] + at["x"], box["y"] + at["y"])
    tip = shown.locator(".tip")
    tip.wait_for(state="visible")
    assert "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__" in tip.inner_text()
    assert "% of the step" in tip.inner_text()
    shown.mouse.move(box["x"] + 5, box["y"] - 40)
    tip.wait_for(state="hidden")


def test_zooming_and_moving_stay_inside_the_step(
    opened: Open, real: Callable[[Findings], str], rich_document: Findings
) -> None:
    shown = opened(real(rich_document))
    frame = shown.locator(".canvas")
    frame.scroll_into_view_if_needed()
    box = frame.bounding_box()
    assert box
    start, end = _view(shown)
    shown.get_by_role("button", name="+", exact=True).click()
    near, far = _view(shown)
    assert far - near == pytest.approx((end - start) / 2)

    frame.focus()
    shown.keyboard.press("+")
    assert _view(shown)[1] - _view(shown)[0] == pytest.approx((end - start) / 4)
    before = _view(shown)
    shown.keyboard.press("ArrowRight")
    assert _view(shown)[0] > before[0]
    for _ in range(30):
        shown.keyboard.press("ArrowRight")
    assert _view(shown)[1] == pytest.approx(end)
    shown.keyboard.press("0")
    assert _view(shown) == (start, end)

    shown.mouse.move(box["x"] + 700, box["y"] + 60)
    shown.keyboard.down("Control")
    shown.mouse.wheel(0, -200)
    shown.keyboard.up("Control")
    _until(shown, f"document.querySelector('.canvas').stepPicture.view().to < {end}")
    zoomed = _view(shown)
    shown.mouse.down()
    shown.mouse.move(box["x"] + 600, box["y"] + 60)
    shown.mouse.up()
    moved = _view(shown)
    assert moved[0] > zoomed[0]
    assert moved[1] - moved[0] == pytest.approx(zoomed[1] - zoomed[0])
    shown.get_by_role("button", name="whole step").click()
    assert _view(shown) == (start, end)


def test_the_wheel_alone_scrolls_the_page(
    opened: Open, real: Callable[[Findings], str], rich_document: Findings
) -> None:
    shown = opened(real(rich_document))
    frame = shown.locator(".canvas")
    frame.scroll_into_view_if_needed()
    box = frame.bounding_box()
    assert box
    before, view = shown.evaluate("scrollY"), _view(shown)
    shown.mouse.move(box["x"] + 300, box["y"] + 40)
    shown.mouse.wheel(0, -200)
    _until(shown, f"scrollY < {before}")
    assert _view(shown) == view


def test_the_picture_is_drawn_in_the_colours_of_its_legend(
    opened: Open, real: Callable[[Findings], str], rich_document: Findings
) -> None:
    shown = opened(real(rich_document))
    _settled(shown)
    found = shown.evaluate(
        """() => {
          const canvas = document.querySelector('canvas'), ratio = devicePixelRatio;
          const at = document.querySelector('.canvas').stepPicture.position(0, 0);
          const pixel = canvas.getContext('2d').getImageData(at.x * ratio, (at.y - 7) * ratio, 1, 1).data;
          const key = [...document.querySelectorAll('.keys span')].find((s) => s.textContent === 'data loading');
          return [[...pixel.slice(0, 3)], getComputedStyle(key.querySelector('i')).backgroundColor];
        }"""
    )
    assert "rgb({}, {}, {})".format(*found[0]) == found[1]


@pytest.mark.parametrize("name", ["rich_document", "tried_document", "hostile_outcome"])
@pytest.mark.parametrize("width", [360, 800, 1600])
def test_the_page_never_scrolls_sideways(
    opened: Open, real: Callable[[Findings], str], name: str, width: int, request: pytest.FixtureRequest
) -> None:
    document = request.getfixturevalue(name)
    if name == "hostile_outcome":
        outcome = document.outcome
        document = msgspec.structs.replace(request.getfixturevalue("rich_document"), outcome=outcome)
    shown = opened(real(document), width=width)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width


_CONTRAST = """
() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const faint = [];
  const texts = 'h1,h2,h3,p,td,th,dt,dd,li,a,b,button,.badge,code,code span,figcaption,.fallrow span';
  for (const node of document.querySelectorAll(texts)) {
    if (!node.innerText || !node.innerText.trim() || !node.checkVisibility()) continue;
    const pair = [light(parse(getComputedStyle(node).color)), light(behind(node))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) faint.push(`${node.tagName}.${node.className} ${ratio.toFixed(2)}: ${node.innerText}`);
  }
  return faint;
}
"""


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_stands_out_from_its_background(
    opened: Open, real: Callable[[Findings], str], tried_document: Findings, dark: bool
) -> None:
    """WCAG 2.1, success criterion 1.4.3: a contrast of at least 4.5."""
    assert opened(real(tried_document), dark=dark).evaluate(_CONTRAST) == []


def test_without_javascript_the_findings_are_still_there(
    opened: Open, real: Callable[[Findings], str], rich_document: Findings
) -> None:
    shown = opened(real(rich_document), script=False)
    text = shown.inner_text("body")
    assert rich_document.findings[0].title in text
    assert "num_workers=4" in text
    assert "The picture needs JavaScript" in text


_LENGTH = (
    "(bar) => [...bar.querySelectorAll('.fallbar i')].reduce((sum, i) => sum + i.getBoundingClientRect().width, 0)"
)


def test_the_waterfall_comes_first_and_is_drawn_to_scale(opened: Open, tried_document: Findings) -> None:
    shown = opened(page.render(tried_document))
    assert shown.locator("main > section").first.get_attribute("id") == "outcome"
    rows = shown.locator(".fallrow:not(.axis)")
    lengths = [rows.nth(index).evaluate(_LENGTH) for index in range(rows.count())]
    assert [length / lengths[0] for length in lengths] == pytest.approx(
        [1, 838 / 400, 1233 / 400, 1233 / 400], rel=0.01
    )
    # The prediction of the second row begins where 1.9 times what its own runs measured before would lie.
    track, expected = (rows.nth(1).locator(part).bounding_box() for part in (".falltrack", ".expected"))
    assert track and expected
    assert (expected["x"] - track["x"]) / lengths[0] == pytest.approx(1.9 * 398 / 400, rel=0.01)


def test_hovering_or_reaching_a_bar_by_keyboard_tells_its_numbers(opened: Open, tried_document: Findings) -> None:
    shown = opened(page.render(tried_document), script=False)
    row = shown.locator(".fallrow.kept").first
    tip = row.locator(".falltip")
    assert not tip.is_visible()
    row.hover()
    assert "measured 2.10× (2.05–2.16)" in tip.inner_text() and tip.is_visible()
    shown.mouse.move(0, 0)
    assert not tip.is_visible()
    for _ in range(40):
        shown.keyboard.press("Tab")
        if tip.is_visible():
            break
    assert tip.is_visible()


def test_on_paper_the_bars_keep_their_colours_and_every_trial_is_there(opened: Open, tried_document: Findings) -> None:
    shown = opened(page.render(tried_document), width=800)
    shown.emulate_media(media="print")
    bar = shown.locator(".fallrow.kept .f-optimizer").first
    assert bar.evaluate("(node) => getComputedStyle(node).printColorAdjust") == "exact"
    text = shown.locator("#outcome").inner_text()
    assert "expected scalar type Float but found BFloat16" in text and "1.412" in text


def test_losses_side_by_side_are_two_curves_over_all_steps(opened: Open, tried_document: Findings) -> None:
    shown = opened(page.render(tried_document))
    assert shown.locator(".curves svg").count() == 1  # of the one fix that changes the training
    before, after = (shown.locator(f".curves path.{name}").bounding_box() for name in ("before", "after"))
    chart = shown.locator(".curves svg").bounding_box()
    assert before and after and chart
    assert before["width"] > 0.95 * chart["width"] and after["width"] > 0.95 * chart["width"]
    assert after["height"] > before["height"]  # it falls further: 1.111 against 1.412
    titles = shown.locator(".curves rect title").all_text_contents()
    assert titles[0] == "1: before 2.31, with the fix 2.33" and len(titles) == 50


def test_kept_changes_come_before_the_others(opened: Open, tried_document: Findings) -> None:
    later = msgspec.structs.replace(tried_document.findings[2], status="kept")
    findings = [*tried_document.findings[1:2], later]
    shown = opened(page.render(msgspec.structs.replace(tried_document, findings=findings)))
    assert [title.split("\n")[-1] for title in shown.locator(".finding h3").all_inner_texts()] == [
        "3Use a larger batch",
        "2Compile the model",
    ]
