"""The HTML report in the distribution's chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from freezeframe.client.report import page
from freezeframe.v1 import request_pb2, snapshot_pb2
from tests.support.browser import chromium
from tests.support.hostile_page import HOSTILE, hostile
from tests.support.story import story

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as launched:
        yield launched


class Opened:
    """A page and what went wrong on it."""

    def __init__(self, browser: Any, path: Path, snapshot: snapshot_pb2.Snapshot, **how: Any) -> None:
        path.write_text(page.render([snapshot], "Not redacted."), encoding="utf-8")
        self.url = path.as_uri()
        self.context = browser.new_context(**how)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(self.url)

    def close(self) -> None:
        self.context.close()
        assert self.said == []
        assert self.asked == [self.url]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    pages: list[Opened] = []

    def open_(snapshot: snapshot_pb2.Snapshot, **how: Any) -> Any:
        pages.append(Opened(browser, tmp_path / f"report-{len(pages)}.html", snapshot, **how))
        return pages[-1].page

    yield open_
    for each in pages:
        each.close()


def many() -> snapshot_pb2.Snapshot:
    snapshot = story()
    for age_ms in (999.0, 61_000.0, 3_600_000.0, 5.0):
        snapshot.requests.add(pid=4711, side=request_pb2.Request.SERVER, age_ms=age_ms, method="GET")
    for number, function in enumerate(("wait_for_leg", "pick_worker", "wait_for_lock")):
        thread = snapshot.native_threads.add(pid=4711, tid=4711 + number, name=f"tokio-{number}")
        thread.frames.add(function=function, module="router", offset=16)
    snapshot.history.interval_ms = 1000
    snapshot.history.series.add(kind="answer bytes", pid=4711, peer_pid=4242, values=[5.0] * 300 + [0.0] * 264)
    return snapshot


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_a_page_fits_its_window_and_can_be_read(opened: Any, width: int, scheme: str) -> None:
    shown = opened(many(), viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert shown.evaluate("document.documentElement.scrollWidth") == width
    kind = "wide" if width == 1400 else "tall"
    assert shown.locator("svg.flow:visible").get_attribute("class") == f"flow {kind}"
    # Verdict and holder are in the first screen.
    for what in (".top .code", "svg.flow:visible g.holds"):
        box = shown.locator(what).bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 900
    dark = shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert dark == (scheme == "dark")
    assert shown.locator("svg.area").first.bounding_box()["width"] >= 200


def test_texts_have_contrast_in_both_schemes(opened: Any) -> None:
    for scheme in ("light", "dark"):
        shown = opened(many(), color_scheme=scheme)
        # WCAG's ratio, of each kind of text against the ground behind it.
        worst = shown.evaluate("""() => {
            const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
            const light = (text) => { const [r, g, b] = numbers(text).slice(0, 3).map((v) => v / 255)
                .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
            const ground = (node) => { for (; node; node = node.parentElement) {
                const colour = getComputedStyle(node).backgroundColor;
                if (numbers(colour)[3] !== 0) return colour; } return "rgb(255, 255, 255)"; };
            let worst = 99;
            for (const node of document.querySelectorAll("h1, h2, p, td, th, code, a, summary, li, button, .count")) {
                if (!node.textContent.trim()) continue;
                const [a, b] = [light(getComputedStyle(node).color), light(ground(node))].sort().reverse();
                worst = Math.min(worst, (a + 0.05) / (b + 0.05));
            }
            return worst;
        }""")
        assert worst >= 4.5, scheme


def test_the_search_keeps_what_matches_and_escape_ends_it(opened: Any) -> None:
    shown = opened(many())
    shown.keyboard.press("/")
    shown.keyboard.type("router WAIT_FOR")
    assert shown.locator("details.stack:visible").count() == 2
    assert shown.locator("details.stack[open]").count() == 2
    assert shown.locator(".search output").inner_text() == "2 of 4"
    assert shown.evaluate("CSS.highlights.get('found').size") == 4
    shown.keyboard.press("Escape")
    assert shown.locator("details.stack:visible").count() == 4
    assert shown.locator("details.stack[open]").count() == 0
    assert shown.locator(".search output").inner_text() == ""
    shown.get_by_role("button", name="Open all").click()
    assert shown.locator("details.stack[open]").count() == 4
    shown.get_by_role("button", name="Fold all").click()
    assert shown.locator("details.stack[open]").count() == 0


def test_a_table_is_sorted_by_what_its_cells_mean(opened: Any) -> None:
    shown = opened(many())
    table = shown.locator("#requests table").first

    def column(number: int) -> list[str]:
        return table.locator(f"tbody td:nth-child({number})").all_inner_texts()

    def sorted_as() -> list[str | None]:
        return [head.get_attribute("aria-sort") for head in table.locator("th").all()]

    age = table.get_by_role("button", name="age")
    age.focus()
    shown.keyboard.press("Enter")
    ages = ["5 ms", "999 ms", "61.0 s", "at least 264.6 s", "at least 264.6 s", "1 h 0 min"]
    assert column(6) == ages
    assert sorted_as() == [None] * 5 + ["ascending"] + [None] * 4
    shown.keyboard.press("Enter")
    assert column(6) == ages[::-1]
    assert sorted_as() == [None] * 5 + ["descending"] + [None] * 4
    # Cells without a value stay last, whichever the order.
    for order in ("ascending", "descending"):
        table.get_by_role("button", name="last in").click()
        assert column(7)[0] == "264.6 s"
        assert set(column(7)[1:]) == {"-"}
        assert sorted_as()[5:7] == [None, order]


def test_everything_is_reached_by_the_keyboard_in_the_order_of_the_page(opened: Any) -> None:
    shown = opened(many(), viewport={"width": 1400, "height": 900})
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    assert shown.locator(".skip").bounding_box()["x"] >= 0
    seen = []
    for _ in range(300):
        shown.keyboard.press("Tab")
        if shown.evaluate("document.activeElement === document.body"):
            break
        seen.append(
            shown.evaluate("""() => {
            const at = document.activeElement, box = at.getBoundingClientRect();
            return [at.tagName, [...document.querySelectorAll("*")].indexOf(at), box.width > 0,
                    getComputedStyle(at).outlineStyle !== "none"];
        }""")
        )
    assert {tag for tag, *_ in seen} == {"A", "BUTTON", "DIV", "INPUT", "SUMMARY"}
    places = [place for _, place, *_ in seen]
    assert places == sorted(places)
    assert all(is_seen and is_marked for *_, is_seen, is_marked in seen)
    summary = shown.locator("#metrics > details > summary")
    summary.focus()
    shown.keyboard.press("Enter")
    assert shown.locator("#metrics table").first.is_visible()


def test_a_link_of_the_evidence_opens_the_section_it_leads_to(opened: Any) -> None:
    shown = opened(many())
    assert not shown.locator("#sockets table").is_visible()
    shown.locator(".reason a[href='#sockets']").first.click()
    shown.locator("#sockets table").wait_for(state="visible", timeout=10_000)
    shown.locator("#sockets summary").click()
    assert not shown.locator("#sockets table").is_visible()
    shown.locator(".reason a[href='#sockets']").first.click()
    shown.locator("#sockets table").wait_for(state="visible", timeout=10_000)


@pytest.mark.parametrize("scripts", [True, False])
def test_hostile_names_are_shown_and_do_nothing(opened: Any, scripts: bool) -> None:
    shown = opened(hostile(), java_script_enabled=scripts)
    assert shown.title().startswith("ROUTER_DUAL_LEG on gpu-07<img src=x")
    assert shown.locator("img, iframe, object, link, base, form, b, [onerror], [onload]").count() == 0
    assert shown.locator("script").count() == 1
    assert (
        shown.locator(".summary").inner_text().endswith(HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e"))
    )
    assert shown.locator("a:not([href^='#'])").count() == 0
    if scripts:
        shown.get_by_role("button", name="Open all").click()
        shown.locator(".search input").fill("onerror")
        assert shown.locator("details.stack[open]").count() == 3
