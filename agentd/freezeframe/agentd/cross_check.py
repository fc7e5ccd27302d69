"""Two readers of the same Python threads, our own walker and py-spy, made one. Pure.

Where the walker knows the interpreter, its stack is told; py-spy's where it does not. They read at different moments,
so what differs speaks against a stack only when the kernel's counters say that the thread did not run from the one to
the other. Two readers that agree on a thread that ran are no doubt any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from freezeframe.agentd.host.cpython.frames import short_path
from freezeframe.agentd.host.cpython.stacks import WalkedThread
from freezeframe.judge.model import Frame, PythonThread

WALKER, PY_SPY, BOTH = "walker", "py-spy", "both"
# How much of the other stack a doubt tells.
_TOLD = 2


def merged(
    pid: int, walked: Sequence[WalkedThread], spied: Sequence[PythonThread], still: Callable[[WalkedThread], bool]
) -> tuple[PythonThread, ...]:
    """Join by thread id, under the walker's names, or by name where py-spy does not know the id (3.10).

    `still` says whether a thread has not run since it was walked. Either list may be empty.
    """
    own = {thread.tid: thread for thread in walked if thread.tid}
    times = Counter(thread.name for thread in walked)
    named = {thread.name: thread for thread in walked if thread.tid and times[thread.name] == 1}
    found: list[PythonThread] = []
    taken: set[int] = set()
    for other in spied:
        mine = own.get(other.tid) if other.tid else named.get(other.name)
        if mine is None or mine.tid in taken:
            found.append(replace(other, source=PY_SPY))
            continue
        taken.add(mine.tid)
        found.append(_joined(pid, mine, other, still(mine)))
    rest = [mine for mine in walked if mine.tid not in taken and (mine.frames or mine.doubt)]
    return (*found, *(_own(pid, mine, mine.doubt, WALKER) for mine in rest))


def same_stack(one: Sequence[Frame], other: Sequence[Frame]) -> bool:
    """Whether two stacks are the same whoever read them: the readers name files and classes differently."""
    return _key(one) == _key(other)


def _joined(pid: int, mine: WalkedThread, other: PythonThread, still: bool) -> PythonThread:
    own = _own(pid, mine, mine.doubt, WALKER)
    if same_stack(own.frames, other.frames):
        return replace(own, active=other.active, doubt="", source=BOTH)
    if mine.doubt:
        # Torn, or between the two: neither is sure.
        return replace(
            other,
            tid=mine.tid,
            name=mine.name,
            doubt=f"{mine.doubt}; our own walk shows {_told(own.frames)}",
            source=PY_SPY,
        )
    doubt = f"py-spy shows {_told(other.frames)}" if still else ""
    return replace(own, active=other.active, doubt=doubt)


def _own(pid: int, mine: WalkedThread, doubt: str, source: str) -> PythonThread:
    return PythonThread(
        pid=pid,
        tid=mine.tid,
        name=mine.name,
        frames=tuple(
            Frame(function=each.place.function, file=short_path(each.place.file), line=each.place.line)
            for each in mine.frames
        ),
        active=mine.running or mine.holds_gil or mine.waits_for_gil,
        owns_gil=mine.holds_gil,
        waits_for_gil=mine.waits_for_gil,
        source=source,
        doubt=doubt,
    )


def _key(frames: Sequence[Frame]) -> tuple[tuple[str, int], ...]:
    return tuple((frame.function.rpartition(".")[2], frame.line) for frame in frames)


def _told(frames: Sequence[Frame]) -> str:
    if not frames:
        return "no frame"
    return " < ".join(f"{frame.function} ({frame.file}:{frame.line})" for frame in frames[:_TOLD])
