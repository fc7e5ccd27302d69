from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.client.cli import cli
from freezeframe.client.render import charts, flow, html, units
from freezeframe.client.render.markup import element, program, written
from freezeframe.client.report import page
from freezeframe.judge import file
from freezeframe.v1 import snapshot_pb2
from tests.support.command import SEPARATE
from tests.support.hostile_page import HOSTILE, hostile
from tests.support.story import story


class Seen(HTMLParser):
    """Tags with their attributes, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_tells_the_verdict_first_and_marks_the_holder_in_words() -> None:
    text = page.render([story()], "Not redacted.")
    said = "".join(Seen(text).texts).partition("</style>")[0]
    places = [said.index(each) for each in ("held by router pid 4711", "HOLDS 30 requests", "30 requests came in")]
    assert places == sorted(places)
    assert "Not redacted." in said
    assert "stray client" in said


def test_a_page_lets_nothing_in_but_its_own_style_and_script() -> None:
    text = page.render([story()], "r")
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (style, script)]
    policy = f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
    tags = Seen(text).tags
    metas = [attributes for tag, attributes in tags if tag == "meta"]
    assert metas[1] == {
        "http-equiv": "Content-Security-Policy", "content": f"{policy}base-uri 'none'; form-action 'none'"
    }  # fmt: skip
    assert not [each for _, attributes in tags for each in attributes if each.startswith("on") or each == "style"]
    assert not [attributes for _, attributes in tags if "src" in attributes]
    assert not re.search(r"url\(|@import|https?:", style + script)


def test_a_page_of_nothing_is_small_and_says_why_there_is_nothing() -> None:
    text = page.render([snapshot_pb2.Snapshot()], "r")
    assert len(text.encode()) < 100_000
    assert "This snapshot carries no verdict." in text
    assert "This snapshot has nothing under Requests." in text


def test_whatever_names_say_they_stay_text() -> None:
    seen = Seen(page.render([hostile()], HOSTILE))
    tags = {tag for tag, _ in seen.tags}
    assert not tags & {"img", "iframe", "object", "form", "base", "foreignobject", "animate", "b"}
    assert [tag for tag, _ in seen.tags].count("script") == 1
    for _, attributes in seen.tags:
        assert not [each for each in attributes if each.startswith("on")]
        assert re.fullmatch(r"#[a-z0-9-]+|None", str(attributes.get("href")))
    assert "<img src=x onerror=document.title='owned'>" in "".join(seen.texts)
    assert "\x1b" not in "".join(seen.texts)
    assert "\u202e" not in "".join(seen.texts)


def test_two_hosts_have_links_of_their_own() -> None:
    other = story()
    other.meta.host = "gpu-08"
    tags = Seen(page.render([story(), other], "r")).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {"host-1-requests", "host-2-requests"} <= set(ids)
    assert {attributes["href"][1:] for _, attributes in tags if "href" in attributes} <= set(ids)


def test_evidence_leads_to_its_section_and_holds_its_records() -> None:
    text = page.render([story()], "r")
    assert '<a href="#logs" class="ref"><code>log_findings[0]</code></a>' in text
    assert '<a href="#hops" class="ref"><code>edges[1]</code></a>' in text
    assert "log_findings[0]: pattern=router_decode_failed" in text


def test_what_is_too_much_is_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MOST_ROWS", 3)
    monkeypatch.setattr(html, "MOST_STACKS", 2)
    snapshot = story()
    for number in range(9):
        snapshot.requests.add(pid=number, age_ms=number, path=f"/row-{number}")
        snapshot.python_threads.add(pid=6000 + number, tid=1).frames.add(function=f"some_{number}", file="f.py", line=1)
    text = page.render([snapshot], "r")
    assert "3 of 11 shown here; the snapshot has them all: freezeframe show FILE requests" in text
    assert "2 of 10 shown here; the snapshot has them all: freezeframe show FILE python" in text
    # The oldest are shown.
    assert "/row-8" in text
    assert "/row-7" not in text


@pytest.mark.parametrize("upright", [False, True])
def test_a_map_of_hops_that_lead_in_a_circle_ends(upright: bool) -> None:
    snapshot = snapshot_pb2.Snapshot()
    for number in range(30):
        snapshot.hops.add(name=f"hop {number}", in_flight=number, next=[f"hop {(number + 1) % 30}", "hop 0", "gone"])
    snapshot.hops.add(name="hop 3", holds=True)
    drawn = written(flow.flow_map(snapshot, upright=upright))
    assert drawn.count('class="name"') <= 31
    assert "nan" not in drawn


def test_many_engines_beside_each_other_are_told_as_a_number_and_the_holder_is_among_those_shown() -> None:
    snapshot = snapshot_pb2.Snapshot()
    snapshot.hops.add(name="router", next=[f"engine {number}" for number in range(20)])
    for number in range(20):
        snapshot.hops.add(name=f"engine {number}", holds=number == 19)
    drawn = written(flow.flow_map(snapshot, upright=False))
    assert drawn.count('class="box hop"') == 8
    assert drawn.count('class="box holds"') == 1
    assert "12 more" in drawn
    assert "engine 19: 0 in flight, holds them" in drawn


def test_a_chart_keeps_a_peak_and_the_gap_of_what_is_not_known() -> None:
    nan = float("nan")
    svg = written(charts.area([0.0, 4.0, nan, nan, 2.0], 6, "t"))
    shapes = re.findall(r' d="([^"]*)"', svg)
    assert shapes == ["M1 28L1 28H2L2 2H3L3 28Z", "M5 28L5 15H6L6 28Z"]
    long = written(charts.area([0.0] * 500 + [7.0] + [0.0] * 399, 900, "t"))
    # Four seconds share a place; the one with the peak is as high as it can be.
    assert "L125 2H126" in long


def test_a_program_that_could_end_its_own_tag_is_refused() -> None:
    with pytest.raises(ValueError, match="end tag"):
        program("script", "'</script>'")


def test_text_is_escaped_wherever_it_stands() -> None:
    made = element("p", {"title": '"<&'}, "<b>", element("i", None, "&"), "</p>", " tail")
    assert '<p title="&quot;<&amp;">&lt;b&gt;<i>&amp;</i>&lt;/p&gt; tail</p>' in written(made)


@given(st.floats(min_value=0, max_value=1e12), st.floats(min_value=0, max_value=1e12))
def test_what_units_say_sorts_as_it_was(one: float, other: float) -> None:
    for say in (units.age, units.size, units.rate, units.number):
        first, second = units.magnitude(say(one)), units.magnitude(say(other))
        assert first is not None
        assert second is not None
        # What is rounded may become equal, and near a change of unit the coarser one is behind by its own step.
        if one * 1.1 + 1000 < other:
            assert first < second


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at least 264.6 s", 264_600.0), ("3 h 12 min", 11_520_000.0), ("612 ms", 612.0), ("+11 ms", 11.0),
        ("20.3 MB", 20_300_000.0), ("5.1 kB/s", 5100.0), ("1,234", 1234.0), ("2.0 s ago", 2000.0), ("53.2", 53.2),
        ("in 3.0 s", 3000.0), ("-", None), ("", None), ("pid 7", None), ("7, 8", None), ("1.2.3.4:5", None),
        ("0x1f", None), ("12 apples", None),
    ],
)  # fmt: skip
def test_a_magnitude(text: str, expected: float | None) -> None:
    assert units.magnitude(text) == expected


def test_the_command_writes_a_redacted_page(tmp_path: Path) -> None:
    secret = "hf_abcdefGHIJKL0123456789"
    snapshot = story()
    snapshot.processes[2].argv[:] = ["smg", "launch", "--worker-token", secret]
    snapshot.verdict.summary += f" Seen: {secret}."
    saved, out = tmp_path / "some.ffz", tmp_path / "report.html"
    saved.write_bytes(file.write([snapshot], "freezeframe-tests 0"))
    done = CliRunner(**SEPARATE).invoke(cli, ["report", str(saved), "-o", str(out)])
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"{out}\n")
    text = out.read_text(encoding="utf-8")
    assert secret not in text
    assert re.search(r"Seen: SECRET-[0-9a-f]{10}\.", text)
    assert "secrets that became tokens (SECRET-…, equal ones equal): 1." in text
