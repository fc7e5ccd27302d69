"""What a Python stack tells about a thread: it rests in its event loop, waits for a lock, or runs other code.

py-spy shows no suspended coroutine, so a stack can prove that a loop is blocked in synchronous code or that it rests,
never how many requests wait in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from freezeframe.judge.correlate.joined import own_pid
from freezeframe.judge.model import Frame, PythonThread

# Functions that run an event loop. uvloop's own loop is C and shows no frame inside.
_LOOP_RUNNERS = (
    ("run", "asyncio/runners.py"),
    ("run", "uvloop/__init__.py"),
    ("run_until_complete", "asyncio/base_events.py"),
    ("run_forever", "asyncio/base_events.py"),
    ("_run_once", "asyncio/base_events.py"),
    ("asyncio_run", "uvicorn/_compat.py"),
    ("run", "uvicorn/server.py"),
    ("run", "uvicorn/main.py"),
    # SGLang's and vLLM's own entry points, which call uvicorn: what is inside a coroutine comes above them.
    ("launch_server", "entrypoints/http_server.py"),
    ("run_server", "entrypoints/openai/api_server.py"),
)
# Where a resting asyncio loop is.
_LOOP_RESTS = (("select", "selectors.py"), ("_run_once", "asyncio/base_events.py"))

# Idle frames of schedulers, SGLang's and vLLM's. `recv_requests` polls without blocking.
_SCHEDULER_RESTS = frozenset(
    {"maybe_sleep", "maybe_sleep_on_idle", "on_idle", "recv_requests", "_process_input_queue", "self_check_during_idle"}
)

# `on_idle` goes on to it only when every queue is empty.
_IDLE_SLEEP = (("maybe_sleep", ""),)

# A scheduler's main thread, or a worker's, that runs a batch: SGLang's and vLLM's.
_BATCH = frozenset({"run_batch", "forward_batch_generation", "execute_model"})

# Frames of a thread that waits for a connection of its own pool, or for a lock before it sends.
_POOL_WAITS = (
    ("_get_conn", "urllib3/connectionpool.py"),
    ("wait_for_connection", "httpcore/"),
    ("handle_request", "httpcore/_sync/connection_pool.py"),
    ("_acquire_connection", "aiohttp/connector.py"),
)
_LOCK_WAITS = (
    ("acquire", "threading.py"),
    ("wait", "threading.py"),
    ("get", "queue.py"),
    ("wait", "concurrent/futures"),
)

# Main threads by pid, each with its position in the snapshot.
Mains = Mapping[int, tuple[int, PythonThread]]


def main_threads(threads: Sequence[PythonThread]) -> dict[int, tuple[int, PythonThread]]:
    """Main Python threads by pid, each with its position."""
    mains: dict[int, tuple[int, PythonThread]] = {}
    for index, thread in enumerate(threads):
        if thread.frames and (thread.name == "MainThread" or thread.tid == own_pid(thread.pid)):
            mains.setdefault(thread.pid, (index, thread))
    return mains


def blocked_in(thread: PythonThread) -> Frame | None:
    """The innermost frame when the thread's event loop sits in synchronous code; None when it rests or has no loop."""
    for depth, frame in enumerate(thread.frames):
        if not _matches(frame, _LOOP_RUNNERS):
            continue
        if depth == 0 or _matches(thread.frames[0], _LOOP_RESTS):
            return None
        return thread.frames[0]
    return None


def rests_in_loop(thread: PythonThread) -> bool:
    """Whether the stack shows an event loop, and nothing that it runs."""
    return any(_matches(frame, _LOOP_RUNNERS) for frame in thread.frames) and blocked_in(thread) is None


def rests_in_scheduler(pid: int, mains: Mains) -> str | None:
    """How a scheduler's main thread rests at both looks; None when it does not, or only one look was taken."""
    entry = mains.get(pid)
    if entry is None:
        return None
    thread = entry[1]
    if thread.same_at_second_look is None:
        return None
    looks = (thread.frames, thread.frames_after or thread.frames)
    found = [next((name for f in frames if (name := _name(f)) in _SCHEDULER_RESTS), None) for frames in looks]
    return None if None in found else f"is in {found[0]} at both looks"


def seen_at_work(pid: int, mains: Mains) -> bool:
    """Whether a scheduler's main thread was seen, and in no idle frame at any look."""
    entry = mains.get(pid)
    if entry is None:
        return False
    return all(_name(frame) not in _SCHEDULER_RESTS for frame in (*entry[1].frames, *entry[1].frames_after))


def in_idle_sleep(pid: int, mains: Mains) -> bool:
    """Whether a scheduler's main thread is in SGLang's idle sleep at both looks."""
    entry = mains.get(pid)
    if entry is None or entry[1].same_at_second_look is None:
        return False
    looks = (entry[1].frames, entry[1].frames_after or entry[1].frames)
    return all(any(_matches(frame, _IDLE_SLEEP) for frame in frames) for frames in looks)


def in_one_batch(pid: int, mains: Mains) -> Frame | None:
    """The innermost frame of a scheduler's main thread that runs a batch, the same at both looks; None otherwise.

    Looks that see two batches, one after the other, may be the same too.
    """
    entry = mains.get(pid)
    if entry is None or not entry[1].same_at_second_look:
        return None
    frames = entry[1].frames
    return frames[0] if any(_name(frame) in _BATCH for frame in frames) else None


def waits_before_sending(thread: PythonThread) -> str | None:
    """What keeps a client's thread from sending, at both looks: its connection pool or a lock; None otherwise."""
    if not thread.same_at_second_look:
        return None
    pool = next((f for f in thread.frames if _matches(f, _POOL_WAITS)), None)
    if pool is None or not _matches(thread.frames[0], _LOCK_WAITS):
        return None
    return f"{pool.function} ({pool.file}:{pool.line})"


def _name(frame: Frame) -> str:
    """The function's own name, without the class that a walker may know."""
    return frame.function.rpartition(".")[2]


def _matches(frame: Frame, known: tuple[tuple[str, str], ...]) -> bool:
    return any(_name(frame) == function and file in frame.file for function, file in known)
