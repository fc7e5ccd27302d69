from __future__ import annotations

from dataclasses import replace

from freezeframe.judge.correlate.tasks import gathered, innermost, name_requests, refer, where
from freezeframe.judge.model import AsyncioTask, Frame, Request, TaskEdge

SERVER, CLIENT = Request.Side.SERVER, Request.Side.CLIENT
HANG = (
    Frame(function="RequestResponseCycle.run_asgi", file="uvicorn/protocols/http/h11_impl.py", line=400),
    Frame(function="generate", file="/srv/engine.py", line=12),
    Frame(function="Event.wait", file="asyncio/locks.py", line=213),
)


def request(fd: int | None, **known: object) -> Request:
    return Request(pid=10, fd=fd, side=SERVER, source="socket", **known)


def task(**known: object) -> AsyncioTask:
    return AsyncioTask(**{"pid": 10, "state": "waiting", "frames": HANG, **known})


def refs(tasks: list[AsyncioTask], requests: list[Request]) -> list[str]:
    return [each.request_ref for each in refer(tasks, requests)]


def test_by_descriptor_then_id_then_client() -> None:
    requests = [request(7), request(8, request_id="b"), request(9, peer_address="127.0.0.1:9")]
    tasks = [task(fd=7), task(request_id="b"), task(peer_address="127.0.0.1:9"), task(fd=70), task(fd=7, pid=11)]
    assert refs(tasks, requests) == ["requests[0]", "requests[1]", "requests[2]", "", ""]


def test_several_requests_on_one_connection_are_told_apart_by_id_or_not_at_all() -> None:
    requests = [request(7, request_id="a"), request(7, request_id="b")]
    assert refs([task(fd=7, request_id="b"), task(fd=7)], requests) == ["requests[1]", ""]


def test_a_client_end_a_doubted_and_a_finished_task_are_not_joined() -> None:
    requests = [replace(request(7), side=CLIENT), request(8)]
    assert refs([task(fd=7), task(fd=8, doubt="it went on"), task(fd=8, state="finished")], requests) == ["", "", ""]


def test_a_task_names_the_request_that_nothing_else_names() -> None:
    requests = [request(7), request(8, request_id="kept", method="GET", path="/kept")]
    name_requests(
        requests,
        [
            task(fd=7, request_id="a", method="POST", path="/generate"),
            task(fd=8, request_id="", method="POST", path="/other"),
        ],
    )
    assert [(each.request_id, each.method, each.path) for each in requests] == [
        ("a", "POST", "/generate"),
        ("kept", "GET", "/kept"),
    ]


def test_where_is_the_innermost_frame_that_is_none_of_a_library() -> None:
    assert where(task()) == HANG[1]
    assert where(task(frames=HANG[2:])) == HANG[2]
    assert where(task(frames=())) is None
    assert gathered([task(), task(), task(frames=HANG[:1])]) == (HANG[1], 2)
    assert gathered([]) is None


def test_of_tasks_of_one_request_the_innermost_counts() -> None:
    parent = task(address="0x1", waits_for=(TaskEdge(address="0x2", kind="TaskGroup"),))
    child = task(address="0x2")
    assert innermost([(0, parent), (1, child)]) == [(1, child)]
    # asyncio.wait_for runs what it is given in a task of its own.
    of_wait_for = task(address="0x2", frames=(Frame(function="Event.wait", file="asyncio/locks.py", line=213),))
    assert innermost([(0, parent), (1, of_wait_for)]) == [(0, parent)]
    assert innermost([(1, of_wait_for)]) == [(1, of_wait_for)]
