from __future__ import annotations

import pytest

from freezeframe.client.compare import Comparison, Given, compare, pairs
from freezeframe.client.errors import NotComparableError
from freezeframe.v1 import meta_pb2, process_pb2, snapshot_pb2, verdict_pb2
from tests.support.two_moments import HARNESS, PREFILL, ROUTER, SERVER, moment

Snapshot = snapshot_pb2.Snapshot
Status = meta_pb2.Outcome.Status
Code = verdict_pb2.Verdict.Code


def held(first: Snapshot, second: Snapshot, *, lost: frozenset[str] = frozenset()) -> Comparison:
    return compare(Given(snapshot=first, file="a.ffz"), Given(snapshot=second, file="b.ffz", lost=lost))


def without(snapshot: Snapshot, collector: str, status: int = Status.TIMED_OUT, pids: tuple[int, ...] = ()) -> Snapshot:
    for outcome in snapshot.outcomes:
        if outcome.collector == collector:
            outcome.status, outcome.detail = status, "reading took too long"
            outcome.pids_missed.extend(pids)
    return snapshot


def told(comparison: Comparison, state: str) -> list[tuple[int | None, str]]:
    return [(each.pid, each.request_id) for each in comparison.requests if each.state == state]


def test_the_same_requests_of_which_nothing_moved() -> None:
    c = held(moment(), moment(41))
    assert c.headline == "same 30 requests, 41 s older, nothing moved"
    assert (c.nothing_moved, c.still, c.elapsed_ms) == (True, 30, 41_000.0)
    # Those of the harness, and what the router passed on.
    assert c.request_counts == {"same": 60, "gone": 0, "new": 0, "unclear": 0}
    first = c.requests[0]
    assert (first.pid, first.hop, first.of_client, first.request_id) == (ROUTER, "router", True, "bench-0")
    assert (first.age_before_ms, first.age_after_ms, first.bytes_moved) == (9_000, 50_000, 0)
    assert c.process_counts == {"same": 3, "changed": 0, "restarted": 0, "gone": 0, "new": 0, "unclear": 0}
    assert c.metric_counts == {"same": 2, "changed": 0, "gone": 0, "new": 0, "unclear": 0}
    assert c.socket_counts == {"same": 60, "moved": 0, "changed": 0, "gone": 0, "new": 0, "unclear": 0}
    assert [(s.kind, s.pid, s.same, s.changed) for s in c.stack_counts] == [
        ("python", HARNESS, 1, 0), ("native", ROUTER, 1, 0), ("asyncio", PREFILL, 1, 0),
    ]  # fmt: skip
    assert (c.stacks, c.metrics, c.sockets, c.unseen, c.remarks) == ((), (), (), (), ())


def test_requests_that_are_gone() -> None:
    c = held(moment(), moment(3.2, requests=0))
    assert c.headline == "30 requests gone, 3.2 s apart"
    assert c.request_counts == {"same": 0, "gone": 60, "new": 0, "unclear": 0}
    assert c.socket_counts["gone"] == 60
    assert not c.nothing_moved


def test_requests_that_are_new() -> None:
    c = held(moment(requests=0), moment(3, requests=1))
    assert c.headline == "1 request new, 3.0 s apart"
    assert c.request_counts["new"] == 2


def test_no_request_at_all() -> None:
    assert held(moment(requests=0), moment(61, requests=0)).headline == "no request of a client in either, 61 s apart"


def test_a_stray_that_moves_beside_those_that_hang() -> None:
    first, second = moment(), moment(41)
    for snapshot, sent in ((first, 1000.0), (second, 80_000.0)):
        snapshot.sockets.add(
            family="tcp", state="ESTAB", local="127.0.0.1:31000", remote="127.0.0.1:9", pid=PREFILL, fd=99,
            inode=7, peer_pid=4300, bytes_in=300, bytes_out=sent, netns=1,
        )  # fmt: skip
        # An answer that streams has the age of its last byte, where nobody saw it begin.
        snapshot.requests.add(pid=PREFILL, fd=99, side=SERVER, at_least=True, peer_pid=4300, streaming=True)
    c = held(first, second)
    assert c.headline == "same 30 requests, 41 s older, nothing moved; 1 more goes on, with bytes that moved"
    assert not c.nothing_moved
    assert [(s.state, s.bytes_in, s.bytes_out) for s in c.sockets] == [("moved", 0.0, 79_000.0)]


def test_a_later_request_on_the_same_connection_is_another() -> None:
    first, second = moment(requests=1), moment(41, requests=1)
    for request in second.requests:
        request.age_ms = 500
        request.request_id = "bench-9" if request.pid == ROUTER else ""
    for socket in second.sockets:
        socket.bytes_in, socket.bytes_out = 1400, 9000
    c = held(first, second)
    assert c.headline == "1 request gone, 1 new, 41 s apart"
    assert told(c, "gone") == [(ROUTER, "bench-0"), (PREFILL, "")]
    assert told(c, "new") == [(ROUTER, "bench-9"), (PREFILL, "")]


@pytest.mark.parametrize(
    ("bytes_in", "state"),
    [(700, "same"), (1400, "new"), (None, "unclear")],
    ids=["no byte of a later request", "bytes of one", "bytes unknown"],
)
def test_an_age_that_is_only_a_least_one_leaves_it_to_the_bytes(bytes_in: float | None, state: str) -> None:
    first, second = moment(requests=1), moment(41, requests=1)
    for snapshot in (first, second):
        del snapshot.requests[1:], snapshot.sockets[1:]
        snapshot.requests[0].request_id = ""
    second.requests[0].age_ms, second.requests[0].at_least = 200, True
    if bytes_in is None:
        second.sockets[0].ClearField("bytes_in")
    else:
        second.sockets[0].bytes_in = bytes_in
    assert held(first, second).request_counts[state] == 1


def test_another_socket_with_the_same_addresses_is_another_request() -> None:
    first, second = moment(requests=1), moment(41, requests=1)
    for socket in second.sockets:
        socket.inode += 1
    assert held(first, second).request_counts == {"same": 0, "gone": 2, "new": 2, "unclear": 0}


def test_a_request_is_the_same_once_the_server_has_read_it() -> None:
    first, second = moment(requests=1), moment(41, requests=1)
    # Before, the client's end alone tells of it.
    socket = first.sockets[0]
    first.sockets.add(
        family="tcp", state="ESTAB", local=socket.remote, remote=socket.local, pid=HARNESS, fd=7, peer_pid=ROUTER,
        inode=1, bytes_in=0, bytes_out=700, netns=1,
    )  # fmt: skip
    first.requests[0].pid, first.requests[0].fd, first.requests[0].peer_pid = HARNESS, 7, ROUTER
    first.requests[0].side = 2
    assert held(first, second).request_counts == {"same": 2, "gone": 0, "new": 0, "unclear": 0}


def test_streams_of_one_connection_are_paired_by_id_and_age() -> None:
    first, second = moment(requests=1), moment(41, requests=1)
    for snapshot, extra in ((first, (("x", 8_000), ("y", 7_000))), (second, (("y", 48_000), ("z", 3_000)))):
        for request_id, age in extra:
            snapshot.requests.add(
                pid=ROUTER, fd=100, side=SERVER, age_ms=age, peer_pid=HARNESS, request_id=request_id, protocol="h2"
            )
    c = held(first, second)
    assert sorted(told(c, "same")) == [(ROUTER, "bench-0"), (ROUTER, "y"), (PREFILL, "")]
    assert (told(c, "gone"), told(c, "new")) == ([(ROUTER, "x")], [(ROUTER, "z")])


@pytest.mark.parametrize("side", ["before", "after"])
def test_what_was_not_seen_is_neither_gone_nor_new(side: str) -> None:
    blind = without(moment(0 if side == "before" else 41, requests=0), "snapshot_sockets")
    c = held(blind, moment(41)) if side == "before" else held(moment(), blind)
    assert c.headline == "30 requests not seen in both, 41 s apart"
    assert c.request_counts == {"same": 0, "gone": 0, "new": 0, "unclear": 60}
    assert c.socket_counts["unclear"] == 60
    assert [(u.what, u.missing_in, u.why) for u in c.unseen] == [
        ("requests", side, "snapshot_sockets TIMED_OUT: reading took too long"),
        ("sockets", side, "snapshot_sockets TIMED_OUT: reading took too long"),
    ]
    assert {each.why for each in c.requests} == {"snapshot_sockets TIMED_OUT: reading took too long"}


def test_neither_saw_requests() -> None:
    first, second = (without(moment(s, requests=0), "snapshot_sockets") for s in (0, 5))
    assert held(first, second).headline == (
        "requests were not seen in both: snapshot_sockets TIMED_OUT: reading took too long (the older one); "
        "snapshot_sockets TIMED_OUT: reading took too long (the newer one)"
    )


def test_a_process_that_was_missed_takes_its_own_requests_out_alone() -> None:
    after = without(moment(41, requests=0), "snapshot_sockets", Status.PARTIAL, (PREFILL,))
    c = held(moment(), after)
    # The router's end of the connections to prefill would still show them.
    assert c.request_counts == {"same": 0, "gone": 60, "new": 0, "unclear": 0}
    c = held(moment(), without(moment(41, requests=0), "snapshot_sockets", Status.PARTIAL, (PREFILL, ROUTER)))
    assert c.request_counts == {"same": 0, "gone": 30, "new": 0, "unclear": 30}


def test_processes_that_were_not_asked_for_are_not_gone() -> None:
    after = moment(41, requests=0)
    after.meta.pids.append(HARNESS)
    del after.processes[1:]
    c = held(moment(), after)
    assert c.process_counts == {"same": 1, "changed": 0, "restarted": 0, "gone": 0, "new": 0, "unclear": 2}
    assert c.request_counts["gone"] == 30
    assert c.request_counts["unclear"] == 30
    assert c.remarks == (f"They looked at different processes (all of the path and pids {HARNESS}).",)


def test_a_section_that_is_lost_is_not_compared() -> None:
    after = moment(41)
    del after.requests[:]
    c = held(moment(), after, lost=frozenset({"requests"}))
    assert c.request_counts == {"same": 0, "gone": 0, "new": 0, "unclear": 60}
    assert c.remarks == ("b.ffz is damaged: requests cannot be compared.",)


def test_requests_whose_sockets_are_lost_are_the_same_by_descriptor_and_age() -> None:
    after = moment(41)
    del after.sockets[:]
    c = held(moment(), after, lost=frozenset({"sockets"}))
    assert c.request_counts == {"same": 60, "gone": 0, "new": 0, "unclear": 0}
    assert c.headline == "same 30 requests, 41 s older, whether bytes moved is not known of 30"
    assert c.socket_counts["unclear"] == 60


def test_a_collector_that_did_not_run_in_one_of_them() -> None:
    before = moment()
    del before.native_threads[:]
    before.outcomes.remove(next(o for o in before.outcomes if o.collector == "snapshot_native_stacks"))
    c = held(before, moment(5))
    assert [(s.state, s.kind) for s in c.stacks] == [("unclear", "native")]
    assert [(u.what, u.missing_in, u.why) for u in c.unseen] == [
        ("native", "before", "snapshot_native_stacks did not run")
    ]


def test_the_wrong_order_is_put_right_and_said() -> None:
    c = held(moment(41), moment())
    assert c.headline == "same 30 requests, 41 s older, nothing moved"
    assert (c.before.file, c.after.file) == ("b.ffz", "a.ffz")
    assert c.remarks == ("The newer one was given first: what is told goes from b.ffz to a.ffz.",)


def test_the_same_snapshot_twice() -> None:
    assert held(moment(), moment()).headline == "both files are the same snapshot, gpu-07-0.0"


def test_different_windows_are_said() -> None:
    second = moment(41)
    second.meta.window_ms = 0
    c = held(moment(), second)
    assert c.remarks == (
        "Their windows differ (1.0 s and one look): what each saw move within its own is not comparable.",
    )
    assert c.elapsed_ms == 40_000.0


def test_a_reboot_leaves_nothing_the_same() -> None:
    second = moment(41)
    second.meta.boot_id = "c"
    c = held(moment(), second)
    assert c.headline == "the host was started anew in between, 41 s apart: nothing goes on"
    assert c.process_counts == {"same": 0, "changed": 0, "restarted": 0, "gone": 3, "new": 3, "unclear": 0}
    assert (c.requests, c.stacks, c.metrics, c.sockets) == ((), (), (), ())


def test_two_hosts_have_nothing_in_common() -> None:
    with pytest.raises(NotComparableError) as caught:
        pairs(("a.ffz", "b.ffz"), (["gpu-07"], ["gpu-08"]))
    assert str(caught.value) == "a.ffz is of gpu-07, b.ffz of gpu-08: nothing in them is the same thing"


def test_a_restart_under_another_pid_and_under_the_same() -> None:
    second = moment(41, requests=0)
    second.processes[1].pid, second.processes[1].start_ticks = 6000, 9999
    second.processes[2].start_ticks = 9998
    c = held(moment(), second)
    assert [(p.state, p.pid, p.pid_after) for p in c.processes if p.state != "same"] == [
        ("restarted", PREFILL, None), ("restarted", ROUTER, 6000),
    ]  # fmt: skip
    assert told(c, "gone")[0] == (ROUTER, "bench-0")
    assert c.requests[0].why == "its process has ended or is no part of the path any more"
    # Of a process that is another one nothing is compared.
    assert c.metric_counts == {"same": 0, "changed": 0, "gone": 0, "new": 0, "unclear": 0}


def test_two_alike_that_went_have_no_successor() -> None:
    first, second = moment(), moment(41)
    first.processes.add(pid=5001, role=process_pb2.Process.Role.ENGINE_HTTP, title="sglang::http", start_ticks=1)
    second.processes[2].pid, second.processes[2].start_ticks = 6000, 9999
    states = {p.pid: p.state for p in held(first, second).processes}
    assert (states[PREFILL], states[5001], states[6000]) == ("gone", "gone", "new")


def test_a_process_that_was_stopped_in_between() -> None:
    second = moment(41)
    second.processes[1].state = "T"
    second.processes[2].frozen = True
    c = held(moment(), second)
    assert [(p.pid, p.state, p.changes, p.cpu_ms) for p in c.processes] == [
        (HARNESS, "same", (), 41.0), (ROUTER, "changed", ("state S, then T",), 41.0),
        (PREFILL, "changed", ("frozen",), 41.0),
    ]  # fmt: skip


def test_stacks_that_changed_came_and_went() -> None:
    first, second = moment(), moment(41)
    # The last stack of the older one counts.
    first.python_threads[0].same_at_second_look = False
    first.python_threads[0].frames_after.add(function="recv", file="socket.py", line=9)
    first.python_threads.add(pid=HARNESS, tid=4250, name="worker").frames.add(function="f", file="x.py", line=1)
    second.native_threads[0].frames[0].offset = 0x20
    second.asyncio_tasks[0].address = "0x9"
    second.native_threads.add(pid=ROUTER, tid=4712, name="tokio-1")
    first.native_threads.add(pid=ROUTER, tid=4712, name="tokio-1").frames.add(function="g", module="m")
    c = held(first, second)
    assert [(s.state, s.kind, s.tid, s.frames_before, s.frames_after) for s in c.stacks] == [
        ("changed", "python", HARNESS, ("recv (socket.py:9)",), ("select (selectors.py:468)",)),
        ("gone", "python", 4250, ("f (x.py:1)",), ()),
        ("changed", "native", ROUTER, ("epoll_wait (libc.so.6+0x10)",), ("epoll_wait (libc.so.6+0x20)",)),
        # A stack that was not read moved nowhere.
        ("unclear", "native", 4712, ("g (m+0x0)",), ()),
        ("gone", "asyncio", None, ("generate (http.py:88)",), ()),
        ("new", "asyncio", None, (), ("generate (http.py:88)",)),
    ]


def test_gauges_and_counters() -> None:
    second = moment(41)
    second.metrics[1].value, second.metrics[1].age_ms = 5300.0, 812.0
    second.metrics.add(name="sglang:num_queue_reqs", value=1, pid=PREFILL)
    c = held(moment(), second)
    assert c.metric_counts == {"same": 1, "changed": 1, "gone": 0, "new": 1, "unclear": 0}
    (changed,) = c.metrics
    assert (changed.name, changed.labels, changed.pid) == ("sglang:generation_tokens_total", {"rank": "0"}, PREFILL)
    assert (changed.before, changed.after, changed.change, changed.age_ms) == (5000.0, 5300.0, 300.0, 812.0)


def test_connections_that_changed_their_state() -> None:
    first, second = moment(), moment(41)
    second.sockets[0].state = "CLOSE-WAIT"
    for snapshot, backlog in ((first, 0), (second, 30)):
        snapshot.sockets.add(family="tcp", state="LISTEN", local="0.0.0.0:30000", pid=ROUTER, inode=3, backlog=backlog)
    c = held(first, second)
    assert [(s.state, s.local, s.changes) for s in c.sockets] == [
        ("changed", "127.0.0.1:30000", ("ESTAB, then CLOSE-WAIT",)),
        ("changed", "0.0.0.0:30000", ("backlog 0, then 30",)),
    ]


def test_the_verdict_before_and_after() -> None:
    first, second = moment(), moment(41, requests=0)
    first.verdict.MergeFrom(
        verdict_pb2.Verdict(code=Code.ROUTER_DUAL_LEG, hop="router", holder_pids=[ROUTER], summary="It holds.")
    )
    second.verdict.MergeFrom(verdict_pb2.Verdict(code=Code.IDLE, summary="Nothing is in flight."))
    c = held(first, second)
    assert c.verdict_changed
    assert (c.before.code, c.before.holder_pids, c.after.code) == ("ROUTER_DUAL_LEG", (ROUTER,), "IDLE")
    assert not held(first, first).verdict_changed


def test_unknown_bytes_are_not_called_still() -> None:
    first, second = moment(requests=2), moment(41, requests=2)
    for snapshot in (first, second):
        for socket in snapshot.sockets:
            socket.ClearField("bytes_out")
    c = held(first, second)
    assert c.headline == "same 2 requests, 41 s older, whether bytes moved is not known of 2"
    assert (c.still, c.nothing_moved) == (0, False)
