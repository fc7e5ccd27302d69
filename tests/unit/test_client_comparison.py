from __future__ import annotations

import json

from freezeframe.client.compare import Comparison, Given, compare
from freezeframe.client.render import comparison, markdown, text
from freezeframe.client.render.style import Style
from freezeframe.v1 import meta_pb2, snapshot_pb2, verdict_pb2
from tests.support.golden import assert_golden
from tests.support.two_moments import PREFILL, ROUTER, moment

Code = verdict_pb2.Verdict.Code
HIGH = verdict_pb2.Confidence.Level.HIGH


def mixed() -> Comparison:
    """Some stay, one goes, one comes; a restart, numbers, stacks, a socket, a verdict, one collector missing."""
    first, second = moment(), moment(41)
    first.verdict.MergeFrom(
        verdict_pb2.Verdict(
            code=Code.ROUTER_DUAL_LEG, hop="router", holder_pids=[ROUTER], confidence=HIGH, summary="R."
        )
    )
    second.verdict.MergeFrom(verdict_pb2.Verdict(code=Code.UNDETERMINED, confidence=1, summary="U."))
    second.requests[0].request_id, second.requests[0].age_ms = "bench-99", 700
    second.metrics[1].value = 5300.0
    second.native_threads[0].frames[0].offset = 0x20
    second.sockets[2].bytes_out = 4096
    second.processes[0].pid, second.processes[0].start_ticks = 6000, 9999
    for outcome in second.outcomes:
        if outcome.collector == "snapshot_asyncio_tasks":
            outcome.status, outcome.detail = meta_pb2.Outcome.Status.SKIPPED, "left out by --skip"
    del second.asyncio_tasks[:]
    return held(first, second)


def held(first: snapshot_pb2.Snapshot, second: snapshot_pb2.Snapshot) -> Comparison:
    return compare(Given(snapshot=first, file="a.ffz"), Given(snapshot=second, file="b.ffz"))


def test_the_page_of_a_standstill() -> None:
    page = text.render(comparison.page(held(moment(), moment(41))), Style())
    assert page.startswith("same 30 requests, 41 s older, nothing moved\n")
    assert_golden(page, "render/diff_still.txt")


def test_the_page_where_much_changed() -> None:
    assert_golden(text.render(comparison.page(mixed()), Style()), "render/diff.txt")


def test_the_page_in_markdown() -> None:
    assert_golden(markdown.render(comparison.page(mixed())), "render/diff.md")


def test_brief_is_five_lines() -> None:
    *lines, last = comparison.brief(held(moment(), moment(41))).splitlines()
    assert lines == [
        "same 30 requests, 41 s older, nothing moved",
        "verdict: UNSPECIFIED (unspecified), then the same",
        "requests at all hops: 60 the same, 0 gone, 0 new, 0 not seen in both",
        "processes: the same; stacks: 0 of 3 changed",
    ]
    about = "gpu-07: 2026-01-02T03:00:00.000Z (a.ffz), then 2026-01-02T03:00:41.000Z (b.ffz)"
    assert last == f"not compared: nothing is missing; {about}"
    assert len(comparison.brief(mixed()).splitlines()) == 5


def test_json_has_names_and_shapes_that_scripts_rely_on() -> None:
    shown = json.loads("".join(comparison.to_json([mixed()], many=False)))
    assert set(shown) == {
        "headline", "host", "before", "after", "elapsed_ms", "still", "nothing_moved", "verdict_changed", "remarks",
        "unseen", "request_counts", "requests", "process_counts", "processes", "stack_counts", "stacks",
        "metric_counts", "metrics", "socket_counts", "sockets",
    }  # fmt: skip
    assert shown["request_counts"] == {"same": 59, "gone": 1, "new": 1, "unclear": 0}
    assert shown["before"]["code"] == "ROUTER_DUAL_LEG"
    assert shown["unseen"] == [
        {"what": "asyncio", "missing_in": "after", "why": "snapshot_asyncio_tasks SKIPPED: left out by --skip"}
    ]
    assert shown["metrics"][0]["labels"] == {"rank": "0"}


def test_json_of_several_hosts_is_an_array_and_odd_numbers_are_words() -> None:
    first, second = moment(), moment(41)
    second.metrics[0].value = float("nan")
    shown = json.loads("".join(comparison.to_json([held(first, second), held(first, second)], many=True)))
    assert [each["metrics"][0]["after"] for each in shown] == ["NaN", "NaN"]


def test_nothing_of_a_target_reaches_the_screen_as_it_is() -> None:
    first, second = moment(requests=1), moment(5, requests=1)
    second.processes[2].title = second.processes[1].title = "\x1b[2Jevil\u202e"
    second.processes[1].state = "T"
    second.requests[0].request_id = "\x1b[2J"
    second.metrics.add(name="a|b`\x1b[2J", value=1, pid=PREFILL)
    c = held(first, second)
    for shown in (
        text.render(comparison.page(c), Style()),
        markdown.render(comparison.page(c)),
        comparison.brief(c),
        "".join(comparison.to_json([c], many=False)),
    ):
        assert "\x1b" not in shown
        assert "\u202e" not in shown
