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
