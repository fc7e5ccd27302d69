from __future__ import annotations

import json
import math
import re

import pytest

from freezeframe.client.cli.show import SECTIONS
from freezeframe.client.render import brief, budget, markdown, sections, text, whereabouts
from freezeframe.client.render import json as render_json
from freezeframe.client.render.document import Bullets, Column, Item, Lines, Paragraph, Section, Table
from freezeframe.client.render.sections import records, stacks, verdict
from freezeframe.client.render.style import Style
from freezeframe.v1 import snapshot_pb2, verdict_pb2
from tests.support.golden import assert_golden
from tests.support.story import story

HOSTILE = "\x1b[2Jevil\r\nname\u202e\u200b\x9b\x07\U000e0041"


def test_the_verdict_page() -> None:
    assert_golden(text.render(verdict.sections(story(), "gpu-07.ffz"), Style()), "render/verdict.txt")


def test_the_verdict_page_where_the_locale_is_ascii() -> None:
    page = text.render(verdict.sections(story(), "gpu-07.ffz"), Style(ascii=True))
    assert page.isascii()
    assert "client 30 > [router 30] > prefill 30 > decode 0\n" in page


def test_the_verdict_page_with_its_records() -> None:
    assert_golden(text.render(verdict.sections(story(), "gpu-07.ffz", why=True), Style()), "render/verdict_why.txt")


def test_every_section() -> None:
    names = tuple(name for name in SECTIONS if name != "verdict")
    assert_golden(text.render(sections.build(story(), names, None, why=False), Style()), "render/sections.txt")


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_reads_nothing_of_a_snapshot_but_what_it_says_it_reads(name: str) -> None:
    whole, part = story(), snapshot_pb2.Snapshot()
    for field, _ in whole.ListFields():
        if field.name in {"meta", "outcomes", *sections.read_by((name,))}:
            kept = snapshot_pb2.Snapshot()
            kept.CopyFrom(whole)
            for other, _ in whole.ListFields():
                if other.name != field.name:
                    kept.ClearField(other.name)  # type: ignore[arg-type]
            part.MergeFrom(kept)
    assert sections.build(part, (name,), None, why=False) == sections.build(whole, (name,), None, why=False)


def test_a_contained_process_has_both_pids_and_how_it_was_launched() -> None:
    snapshot = snapshot_pb2.Snapshot()
    snapshot.processes.add(
        pid=4711, container_pid=1, title="sglang::router", pod="router-0", namespace="serving", container_name="router",
        argv=("smg", "launch", "--port", "30000"), argv_source="parent", state="S", thread_count=3,
    )  # fmt: skip
    snapshot.processes.add(pid=4712, container_pid=7, title="x", container="5e" * 32, argv=("x",), argv_source="own")
    snapshot.processes.add(pid=4713, title="y", unit="y.service", argv=("y", "-z"), argv_source="unit")
    page = text.render(sections.build(snapshot, ("processes",), None, why=False), Style(table_width=None))
    assert "serving/router-0/router, pid 1 inside\n" in page
    assert "5e5e5e5e5e5e, pid 7 inside\n" in page
    assert "y.service\n" in page
    assert page.partition("Launched as:\n")[2].split("\n")[:2] == [
        "  - pid 4711, from its parent: smg launch --port 30000", "  - pid 4713, from its unit's file: y -z",
    ]  # fmt: skip


def test_every_section_of_an_empty_snapshot_says_what_would_bring_it() -> None:
    pages = sections.build(snapshot_pb2.Snapshot(), SECTIONS, None, why=False)
    assert_golden(text.render(pages, Style()), "render/empty.txt")


def test_the_verdict_in_markdown() -> None:
    assert_golden(markdown.render(verdict.sections(story(), "gpu-07.ffz")), "render/verdict.md")


def test_brief_is_five_lines() -> None:
    said = brief.render(story(), "gpu-07.ffz")
    assert_golden(said, "render/brief.txt")
    assert len(said.splitlines()) == 5
    assert len(brief.render(snapshot_pb2.Snapshot(), None).splitlines()) == 5


def test_a_stray_without_a_name_is_its_pid_once() -> None:
    snapshot = story()
    del snapshot.verdict.attribution[:]
    snapshot.verdict.attribution.add(client="pid 31", pid=31, stray=True)
    snapshot.verdict.attribution.add(client="a.py", pid=32, stray=True)
    assert brief.render(snapshot).splitlines()[3].endswith("; stray: pid 31, a.py (pid 32)")
    assert "  - pid 31 is a stray: " in text.render(verdict.sections(snapshot), Style())


def test_where_a_request_is() -> None:
    found = [whereabouts.find(story(), "bench-7")]
    assert whereabouts.hop_of(found[0]) == "router (pid 4711)"
    assert_golden(text.render(whereabouts.page("bench-7", found), Style()), "render/where.txt")


def test_where_an_answered_request_was() -> None:
    page = text.render(whereabouts.page("bench-1", [whereabouts.find(story(), "bench-1")]), Style(width=200))
    assert page.startswith(
        "bench-1 is answered on gpu-07: the log of pid 4711 has its end, status 200 2.0 s to its headers.\n"
    )


def test_where_an_unknown_request_is_not() -> None:
    page = text.render(whereabouts.page("other", [whereabouts.find(story(), "other")]), Style(width=200))
    assert page == (
        "other was not seen on gpu-07. 4 requests with an id were seen: "
        "ids come from request-id headers and from the router's log.\n"
    )


def test_where_follows_references_across_hops_and_never_loops() -> None:
    snapshot = story()
    snapshot.requests[1].upstream.append("requests[0]")
    snapshot.requests[1].request_id = ""
    snapshot.requests[0].upstream.extend(["requests[99]", "garbage", "requests[x]"])
    assert [each.pid for each in whereabouts.find(snapshot, "bench-7").requests] == [4242, 4711]


def test_the_commands_name_the_section_that_the_verdict_leans_on() -> None:
    assert verdict.commands(story(), "a b.ffz") == (
        "freezeframe show 'a b.ffz' verdict --why",
        "freezeframe show 'a b.ffz' sockets",
    )


def test_show_spells_the_sections_that_are_there() -> None:
    assert ("verdict", *(kind.name for kind in sections.SECTIONS)) == SECTIONS


def test_every_field_of_a_snapshot_is_shown_by_a_section() -> None:
    shown = {field for kind in sections.SECTIONS for field in kind.fields} | {"meta", "verdict"}
    assert shown == set(snapshot_pb2.Snapshot.DESCRIPTOR.fields_by_name)


def test_a_snapshot_without_verdict_still_has_a_page() -> None:
    snapshot = story()
    snapshot.ClearField("verdict")
    page = text.render(verdict.sections(snapshot, "x.ffz"), Style())
    assert page.startswith("This snapshot carries no verdict.\nclient 30 ▸ [router 30]")
    assert "snapshot_gpus UNAVAILABLE" in page
    assert not verdict.is_stuck(snapshot)


@pytest.mark.parametrize("name", verdict_pb2.Verdict.Code.keys())
def test_only_calm_codes_are_not_stuck(name: str) -> None:
    snapshot = snapshot_pb2.Snapshot(verdict=verdict_pb2.Verdict(code=verdict_pb2.Verdict.Code.Value(name)))
    assert verdict.is_stuck(snapshot) == (name not in {"NOT_STUCK", "IDLE", "UNSPECIFIED"})


def test_a_code_of_a_newer_agent_shows_as_its_number() -> None:
    snapshot = snapshot_pb2.Snapshot()
    snapshot.verdict.MergeFromString(b"\x08\x8f\x4e")
    assert text.render(verdict.sections(snapshot), Style()).startswith("9999   unspecified confidence\n")
    assert verdict.is_stuck(snapshot)


def test_a_code_with_a_holder_on_another_host() -> None:
    snapshot = story()
    del snapshot.verdict.holder_pids[:]
    snapshot.verdict.holder_address = "10.0.0.7:31000"
    head = text.render(verdict.sections(snapshot), Style()).splitlines()[0]
    assert head == "ROUTER_DUAL_LEG   high confidence   router 10.0.0.7:31000"


def hostile_snapshot() -> snapshot_pb2.Snapshot:
    """The story with every string made hostile, lists and maps too."""
    snapshot = story()
    poison(snapshot)
    return snapshot


def poison(message: object) -> None:
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value[HOSTILE] = HOSTILE
        elif field.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                poison(each)
        elif field.type == field.TYPE_STRING:
            # References lead to records, which have hostile strings of their own.
            if field.name in {"ref", "upstream"}:
                continue
            if isinstance(value, str):
                setattr(message, field.name, value + HOSTILE)
            else:
                value.append(HOSTILE)


FORBIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)


@pytest.mark.parametrize("why", [False, True])
def test_no_control_character_of_a_target_reaches_text_or_markdown(why: bool) -> None:
    snapshot = hostile_snapshot()
    pages = sections.build(snapshot, SECTIONS, f"f{HOSTILE}.ffz", why=why)
    clean_lines = len(text.render(sections.build(story(), SECTIONS, "f.ffz", why=why), Style(width=10**6)).splitlines())
    for page in (text.render(pages, Style()), markdown.render(pages), brief.render(snapshot, HOSTILE)):
        assert not FORBIDDEN.search(page)
    wide = text.render(pages, Style(width=10**6))
    assert "\\x1b[2Jevil\\x0d\\x0aname\\u202e\\u200b\\x9b\\x07\\U000e0041" in wide
    # No line break got through: a hostile map entry more is a line more at most.
    assert abs(len(wide.splitlines()) - clean_lines) <= 2


def test_no_control_character_of_a_target_reaches_json_and_nothing_is_lost() -> None:
    snapshot = hostile_snapshot()
    said = "".join(render_json.stream(snapshot))
    assert not FORBIDDEN.search(said)
    assert json.loads(said)["meta"]["host"] == f"gpu-07{HOSTILE}"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e308, -1.0])
def test_no_number_of_a_file_breaks_a_page(number: float) -> None:
    snapshot = story()
    snapshot.history.series.add(values=[1.0])
    snapshot.native_threads.add().frames.add(offset=1.0)
    put_everywhere(snapshot, number)
    pages = sections.build(snapshot, SECTIONS, "f.ffz", why=True)
    for page in (text.render(pages, Style()), markdown.render(pages), brief.render(snapshot, "f.ffz")):
        assert page
    assert json.loads("".join(render_json.stream(snapshot)))["meta"]["host"] == "gpu-07"


def put_everywhere(message: object, number: float) -> None:
    for field, value in message.ListFields():
        if field.message_type is not None:
            if not field.message_type.GetOptions().map_entry:
                for each in [value] if hasattr(value, "ListFields") else value:
                    put_everywhere(each, number)
        elif field.type == field.TYPE_DOUBLE:
            if isinstance(value, float):
                setattr(message, field.name, number)
            else:
                value.append(number)


def test_hostile_markup_is_plain_in_markdown() -> None:
    page = markdown.render((Section(title="", blocks=(Paragraph(text="<b>|`x`_y_ @all #1 a_b [l](u)"),)),))
    assert page == "\\<b\\>\\|\\`x\\`\\_y\\_ &#64;all \\#1 a_b \\[l\\](u)\n"


def test_json_has_the_shape_of_the_proto() -> None:
    shape = json.loads("".join(render_json.stream(story())))
    assert shape["verdict"]["code"] == "ROUTER_DUAL_LEG"
    assert shape["verdict"]["holder_pids"] == [4711]
    assert shape["verdict"]["attribution"][1]["stray"] is True
    assert shape["verdict"]["attribution"][0]["stray"] is False
    assert shape["outcomes"][0] == {
        "collector": "snapshot_processes", "status": "OK", "detail": "", "hint": "", "duration_ms": 24.0, "items": 9,
        "pids_missed": [],
    }  # fmt: skip
    assert shape["requests"][0]["age_ms"] == 264600.1
    # Without presence: printed though empty. With presence and absent: left out.
    assert shape["gpus"] == []
    assert "history" not in shape
    assert "streaming" in shape["requests"][0]
    assert "last_in_age_ms" not in shape["requests"][0]


def test_json_of_chosen_fields() -> None:
    shape = json.loads("".join(render_json.stream(story(), sections.fields(("sockets", "logs")))))
    assert list(shape) == ["meta", "sockets", "log_findings", "log_sources", "log_requests"]


def test_json_of_several_hosts_is_an_array() -> None:
    pieces = render_json.array([render_json.stream(story()), render_json.stream(story())])
    assert [each["meta"]["host"] for each in json.loads("".join(pieces))] == ["gpu-07", "gpu-07"]


def lay_out(layout: str, pages: tuple[Section, ...], tokens: int | None) -> str:
    return markdown.render(pages, tokens) if layout == "markdown" else text.render(pages, Style(), tokens)


@pytest.mark.parametrize("layout", ["text", "markdown"])
def test_a_budget_keeps_the_head_and_says_what_it_cut(layout: str) -> None:
    pages = verdict.sections(story(), "gpu-07.ffz")
    whole = lay_out(layout, pages, None)
    assert lay_out(layout, pages, 10_000) == whole
    for tokens in (200, 300, 500):
        cut = lay_out(layout, pages, tokens)
        assert cut.startswith(whole.partition("Evidence")[0].rstrip("# \n"))
        assert budget.tokens(cut) <= tokens
        assert "\nCut to fit the budget: " in cut
    # The least is the verdict itself, and what is missing.
    least = " ".join(lay_out(layout, pages, 50).split())
    assert least.endswith("left out: evidence, ruled out, who sent what, stands too, not seen, next, host and time.")


@pytest.mark.parametrize("layout", ["text", "markdown"])
def test_a_budget_cuts_by_importance(layout: str) -> None:
    pages = sections.build(story(), ("verdict", "sockets", "python"), "gpu-07.ffz", why=False)
    order = ["Evidence", "Ruled out", "Who sent what", "Not seen", "Next", "Sockets", "Python stacks"]
    shown = []
    for tokens in range(200, 2500, 50):
        cut = lay_out(layout, pages, tokens)
        assert budget.tokens(cut) <= tokens
        shown.append([title for title in order if f"{title}\n" in cut])
        said = " ".join(cut.partition("Cut to fit the budget:")[2].split()).partition("left out: ")[2]
        left = {title for title in order if title.lower() in said}
        assert left == set(order) - set(shown[-1])
    assert shown[-1] == order
    # What matters more came in first, and nothing went again.
    arrived = [next(number for number, titles in enumerate(shown) if title in titles) for title in order]
    assert arrived == sorted(arrived)


def test_a_list_that_is_cut_says_how_much_of_it_is_there() -> None:
    items = tuple(Item(text=f"fact {number} of many, with an address 127.0.0.1:{number}") for number in range(40))
    pages = (Section(title="", blocks=(Paragraph(text="X"),)), Section(title="Evidence", blocks=(Bullets(items=items),),
        priority=1))  # fmt: skip
    cut = markdown.render(pages, 200)
    assert cut == markdown.render(pages, 200)
    count = cut.count("\n- fact")
    assert 0 < count < 40
    assert cut.endswith(f"Cut to fit the budget: evidence ({count} of 40 shown).\n")


def test_tokens_are_estimated_as_documented() -> None:
    assert [budget.tokens(each) for each in ("", "abc", "abcd", "▸", "a▸b▸")] == [0, 1, 2, 1, 3]


def test_colour_wraps_clean_text_only() -> None:
    page = text.render(verdict.sections(story(), "gpu-07.ffz"), Style(color=True))
    assert "\x1b[1;7m[router 30]\x1b[0m" in page
    assert page.startswith("\x1b[1;31mROUTER_DUAL_LEG")
    assert re.sub("\x1b\\[[0-9;]*m", "", page) == text.render(verdict.sections(story(), "gpu-07.ffz"), Style())


def test_a_table_gives_way_in_its_flexible_columns() -> None:
    table = Table(
        columns=(Column(title="ID"), Column(title="NAME", flexible=True), Column(title="N", right=True)),
        rows=(("a-long-id", "x" * 50, "12"), ("b", "名前" * 20, "1")),
    )
    lines = text.render((Section(title="", blocks=(table,)),), Style(table_width=40)).splitlines()
    assert lines[0] == "ID         NAME                        N"
    assert lines[1] == "a-long-id  " + "x" * 24 + "…  12"
    assert lines[2] == "b          " + "名前" * 6 + "…   1"


def test_on_a_narrow_screen_a_table_that_does_not_fit_is_laid_out_by_rows() -> None:
    table = Table(
        columns=(
            Column(title="CLIENT", flexible=True),
            Column(title="PID", right=True),
            Column(title="REQUESTS", right=True),
            Column(title="AT LEAST", right=True),
            Column(title="NOTE", flexible=True),
        ),
        rows=(("python harness.py", "4242", "30", "264.6 s", ""), ("", "4300", "1", "60.0 s", "stray")),
    )
    page = text.render((Section(title="Who", blocks=(table,)),), Style(width=40, table_width=40))
    assert page.splitlines() == [
        "Who",
        "  python harness.py",
        "    PID 4242  REQUESTS 30",
        "    AT LEAST 264.6 s",
        "  -",
        "    PID 4300  REQUESTS 1",
        "    AT LEAST 60.0 s  NOTE stray",
    ]
    # What fits stays a table.
    assert "CLIENT" in text.render((Section(title="Who", blocks=(table,)),), Style(width=60, table_width=60))


def test_a_table_on_a_pipe_is_whole() -> None:
    table = Table(columns=(Column(title="NAME", flexible=True),), rows=(("x" * 500,),))
    page = text.render((Section(title="", blocks=(table,)),), Style(table_width=None))
    assert page == f"NAME\n{'x' * 500}\n"


def test_a_long_path_line_wraps_at_a_hop() -> None:
    snapshot = story()
    for number in range(12):
        snapshot.hops.add(name=f"engine-{number}", in_flight=number)
    page = text.render(verdict.sections(snapshot), Style())
    assert max(len(line) for line in page.splitlines()[4:9]) <= 80
    assert "\n  ▸ engine-" in page


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("processes[2].threads[0]", "tid=4711, name=sglang::router, state=S, wchan=futex_do_wait, syscall=futex"),
        ("metrics[0]", "name=sglang:num_running_reqs, labels={engine_type=decode}, age_ms=812 ms, delta=0"),
        ("verdict.confidence", "3"),
        ("host.pressure[0]", "resource=cpu, some_avg10=1.5, some_avg60=1.2, some_window=0.4"),
        ("sockets[99]", "not in this snapshot"),
        ("nonsense[0]", "not in this snapshot"),
        ("sockets[0].", "not in this snapshot"),
        ("host[0]", "not in this snapshot"),
        ("history", "not in this snapshot"),
        ("../etc", "not in this snapshot"),
    ],
)
def test_a_reference_leads_to_its_record(reference: str, said: str) -> None:
    (line, *_) = records.resolve(reference, story())
    assert line.startswith(f"{reference}: {said}")


def test_a_reference_to_a_stack_shows_its_frames() -> None:
    assert records.resolve("python_threads[0]", story())[1:] == (
        "at select (/usr/lib/python3.11/selectors.py:468)",
        "at main (/srv/harness.py:88)",
    )


def test_many_references_are_counted_and_resolved_on_request() -> None:
    snapshot = story()
    snapshot.verdict.evidence[0].ref = "sockets[0] sockets[1] sockets[2]"
    assert "(sockets[0] and 2 more)" in text.render(verdict.sections(snapshot), Style(width=200))
    assert "\n    sockets[2]: family=tcp, state=LISTEN" in text.render(verdict.sections(snapshot, why=True), Style())


def native_page(native: list[str], python: list[str]) -> list[str]:
    snapshot = snapshot_pb2.Snapshot()
    thread = snapshot.native_threads.add(pid=7, tid=7, name="main", wait="read fd 3 (pipe:[9])")
    for function in native:
        thread.frames.add(function=function, module="m", offset=16.0)
    if python:
        other = snapshot.python_threads.add(pid=7, tid=7)
        for function in python:
            other.frames.add(function=function, file="a.py", line=3)
    (block,) = stacks.native(snapshot)
    assert isinstance(block, Lines)
    return list(block.lines)


LOOP = "_PyEval_EvalFrameDefault"


@pytest.mark.parametrize(
    ("native", "python", "expected"),
    [
        (["read", "main"], [], ["read  m+0x10", "main  m+0x10"]),
        (
            ["read", LOOP, "call", LOOP, "main"],
            ["inner", "outer"],
            ["read  m+0x10", "[python] inner  a.py:3", "call  m+0x10", "[python] outer  a.py:3", "main  m+0x10"],
        ),
        (
            ["read", LOOP, "call", LOOP, "main"],
            ["a", "b", "c"],
            ["read  m+0x10", "[python] a  a.py:3", "[python] b  a.py:3", "[python] c  a.py:3", "call  m+0x10",
             f"{LOOP}  m+0x10", "main  m+0x10"],
        ),
        (["read", "", "main"], ["a"], ["read  m+0x10", "?  m+0x10", "main  m+0x10", "[python] a  a.py:3"]),
    ],
    ids=["no Python", "one each", "several in one", "stripped"],
)  # fmt: skip
def test_python_frames_stand_where_the_interpreter_ran_them(native, python, expected) -> None:
    assert native_page(native, python) == ["waits in read fd 3 (pipe:[9])", *expected]
