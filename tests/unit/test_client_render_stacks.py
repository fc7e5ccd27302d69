from __future__ import annotations

from freezeframe.client.render.sections import stacks
from freezeframe.v1 import snapshot_pb2, stack_pb2

FRAMES = [
    stack_pb2.Frame(function="run_asgi", file="uvicorn/protocols/http/h11_impl.py", line=411),
    stack_pb2.Frame(function="hang", file="/srv/engine.py", line=8),
]


def task(number: int, **known: object) -> stack_pb2.AsyncioTask:
    values = {"pid": 7, "name": f"Task-{number}", "state": "waiting", "frames": FRAMES, "awaits": "Future", **known}
    return stack_pb2.AsyncioTask(**values)


def shown(*tasks: stack_pb2.AsyncioTask) -> list[tuple[str, tuple[str, ...]]]:
    return [(block.title, block.lines) for block in stacks.asyncio(snapshot_pb2.Snapshot(asyncio_tasks=tasks))]


def test_equal_tasks_are_one_block_with_the_requests_that_they_serve() -> None:
    serving = {"method": "POST", "path": "/generate", "awaits_state": "pending", "same_at_second_look": True}
    alone = task(9, frames=FRAMES[:1], state="ready")
    several = [task(number, request_id=f"id-{number}", **serving) for number in range(6)]
    assert shown(alone, *several) == [
        (
            "pid 7, 6 with the same stack: Task-0 id-0, Task-1 id-1, Task-2 id-2, Task-3 id-3 and 2 more",
            (
                "waiting, same chain at both looks",
                "serves POST /generate",
                "run_asgi  uvicorn/protocols/http/h11_impl.py:411",
                "hang  /srv/engine.py:8",
                "awaits pending Future",
            ),
        ),
        ("pid 7, Task-9", ("ready", "run_asgi  uvicorn/protocols/http/h11_impl.py:411", "awaits Future")),
    ]


def test_what_a_task_waits_for_and_what_speaks_against_it() -> None:
    edges = [stack_pb2.TaskEdge(address="0x1", kind="gather"), stack_pb2.TaskEdge(address="0x2", kind="gather")]
    ((_, lines),) = shown(
        task(1, waits_for=edges, doubt="it went on", frames_after=FRAMES[:1], same_at_second_look=False)
    )
    assert lines == (
        "waiting, chain changed between the looks",
        "run_asgi  uvicorn/protocols/http/h11_impl.py:411",
        "hang  /srv/engine.py:8",
        "awaits Future",
        "waits for other tasks: 2 by gather",
        "doubt: it went on",
        "at the second look:",
        "run_asgi  uvicorn/protocols/http/h11_impl.py:411",
    )


def test_a_thread_that_waits_for_the_interpreter_lock_and_one_that_is_doubted() -> None:
    threads = [
        stack_pb2.PythonThread(pid=7, tid=8, name="worker", active=True, waits_for_gil=True, frames=FRAMES[1:]),
        stack_pb2.PythonThread(pid=7, tid=9, name="other", doubt="py-spy shows hang", frames=FRAMES[1:]),
    ]
    blocks = stacks.python(snapshot_pb2.Snapshot(python_threads=threads))
    assert [(block.title, block.lines) for block in blocks] == [
        ("pid 7, thread 8 worker", ("active, waits for the interpreter lock", "hang  /srv/engine.py:8")),
        ("pid 7, thread 9 other", ("idle", "hang  /srv/engine.py:8", "doubt: py-spy shows hang")),
    ]


def ranked(*stacks_of_ranks: tuple[str, ...]) -> snapshot_pb2.Snapshot:
    """An engine whose ranks have these functions in their main threads, and two equal threads of a pool each."""
    snapshot = snapshot_pb2.Snapshot()
    for number, functions in enumerate(stacks_of_ranks):
        pid = 400 + number
        snapshot.ranks.add(pid=pid, rank=f"TP{number}", engine_pid=300)
        frames = [stack_pb2.Frame(function=function, file="s.py", line=7) for function in functions]
        snapshot.python_threads.add(pid=pid, tid=pid, name="MainThread", frames=frames)
        for tid in (900, 901):
            snapshot.python_threads.add(pid=pid, tid=tid, name="pool", frames=FRAMES[:1])
    return snapshot


def test_equal_stacks_of_ranks_are_one_block_the_minority_first() -> None:
    broadcast, prefetch = ("broadcast", "event_loop"), ("all_reduce", "event_loop")
    blocks = stacks.python(ranked(broadcast, broadcast, prefetch, broadcast))
    assert [(block.title, block.lines[1]) for block in blocks] == [
        ("TP2 (pid 402), thread MainThread", "all_reduce  s.py:7"),
        ("TP0-1, TP3 (pids 400-401, 403), thread MainThread", "broadcast  s.py:7"),
        ("TP0-3 (pids 400-403), thread pool, 8 of them", "run_asgi  uvicorn/protocols/http/h11_impl.py:411"),
    ]


def test_one_rank_alone_is_a_process_like_others() -> None:
    blocks = stacks.python(ranked(("broadcast",)))
    assert [block.title for block in blocks] == [
        "pid 400, thread 400 MainThread",
        "pid 400, 2 with the same stack: thread 900 pool, thread 901 pool",
    ]


def test_addresses_that_differ_do_not_part_the_ranks() -> None:
    snapshot = snapshot_pb2.Snapshot()
    for pid in (400, 401):
        snapshot.ranks.add(pid=pid, rank=f"TP{pid - 400}", engine_pid=300)
        wait = f"futex wait at {0x7F5C0010 + pid:#x}, no timeout"
        frames = [stack_pb2.NativeFrame(function="wait", module="libc.so.6", offset=16)]
        snapshot.native_threads.add(pid=pid, tid=pid, name="sched", frames=frames, wait=wait)
    (block,) = stacks.native(snapshot)
    assert block.title == "TP0-1 (pids 400-401), thread sched"
    assert block.lines == ("waits in futex wait at 0x7f5c01a0, no timeout", "wait  libc.so.6+0x10")
