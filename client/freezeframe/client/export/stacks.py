"""Every stack of a snapshot in one shape: threads of Python and native code, asyncio tasks, or a profile's samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from freezeframe.client.export.moments import length_ns
from freezeframe.client.render import units
from freezeframe.client.render.merged import merge
from freezeframe.v1 import process_pb2, profile_pb2, snapshot_pb2, stack_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame."""

    name: str
    # Source file, or module of a native frame.
    file: str
    # 0 when unknown.
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One stack and how often it was seen."""

    # "sglang::scheduler (pid 4711)", with the host in front where there are several.
    process: str
    # "thread 4712 worker", "task Task-7".
    owner: str
    # Outermost first.
    frames: tuple[Frame, ...]
    # 1 for a thread or task; samples of a profile.
    count: int
    pid: int
    # 0 of a task.
    tid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """What is exported."""

    stacks: tuple[Stack, ...]
    # Time that one count stands for, nanoseconds; 0 when they are threads and tasks at one instant.
    period_ns: int
    # How long it took, nanoseconds; 0 for an instant.
    duration_ns: int
    # Name of the whole: host and time of the capture.
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """One thread's stack at both looks, outermost frame first."""

    pid: int
    # 0 when unknown.
    tid: int
    name: str
    first: tuple[Frame, ...]
    # As far as it is known: of a native stack that changed only that it did; empty with one look.
    second: tuple[Frame, ...]


def instant(snapshots: Sequence[snapshot_pb2.Snapshot]) -> Stacks:
    """All threads and tasks at the first look."""
    found: list[Stack] = []
    for snapshot in snapshots:
        names = _Names(snapshot, several=len(snapshots) > 1)
        found += _threads(snapshot, names)
        found += _tasks(snapshot, names)
    return Stacks(stacks=tuple(found), period_ns=0, duration_ns=0, name=_name(snapshots))


def profile(snapshots: Sequence[snapshot_pb2.Snapshot]) -> Stacks:
    """What the threads ran while they were sampled."""
    found: list[Stack] = []
    rate, duration_ms = 0.0, 0.0
    for snapshot in snapshots:
        names = _Names(snapshot, several=len(snapshots) > 1)
        for thread in snapshot.profile:
            rate, duration_ms = max(rate, thread.hz), max(duration_ms, thread.duration_ms)
            found += (
                Stack(
                    process=names.process(thread.pid),
                    owner=_owner(thread.tid, thread.name),
                    frames=tuple(_sampled(frame) for frame in reversed(stack.frames)),
                    count=stack.samples,
                    pid=thread.pid,
                    tid=thread.tid,
                )
                for stack in thread.stacks
            )
    period_ns = length_ns(1000.0 / rate) if rate else 0
    return Stacks(stacks=tuple(found), period_ns=period_ns, duration_ns=length_ns(duration_ms), name=_name(snapshots))


def looks(snapshot: snapshot_pb2.Snapshot) -> list[Looks]:
    """Every thread of one host that has a stack."""
    return [
        Looks(
            pid=pid,
            tid=tid,
            name=name,
            first=tuple(reversed(_first(native, python))),
            second=tuple(reversed(_second(native, python))),
        )
        for pid, tid, name, native, python in _pairs(snapshot)
    ]


class _Names:
    def __init__(self, snapshot: snapshot_pb2.Snapshot, *, several: bool) -> None:
        self._host = f"{snapshot.meta.host} " if several else ""
        self._processes: dict[int, process_pb2.Process] = {process.pid: process for process in snapshot.processes}

    def process(self, pid: int) -> str:
        known = self._processes.get(pid)
        title = (known.title or known.comm) if known is not None else ""
        return f"{self._host}{title} (pid {pid})" if title else f"{self._host}pid {pid}"


def _threads(snapshot: snapshot_pb2.Snapshot, names: _Names) -> Iterable[Stack]:
    for pid, tid, name, native, python in _pairs(snapshot):
        yield _stack(names, pid, tid, name, _first(native, python))


_Native = stack_pb2.NativeThread | None
_Python = stack_pb2.PythonThread | None


def _pairs(snapshot: snapshot_pb2.Snapshot) -> Iterable[tuple[int, int, str, _Native, _Python]]:
    """Give each thread that has a stack, native or Python or both: pid, tid, name."""
    python = {(thread.pid, thread.tid): thread for thread in snapshot.python_threads if thread.tid}
    for native in snapshot.native_threads:
        beside = python.pop((native.pid, native.tid), None)
        yield native.pid, native.tid, native.name or (beside.name if beside else ""), native, beside
    known = {(thread.pid, thread.tid) for thread in snapshot.native_threads}
    for thread in snapshot.python_threads:
        if (thread.pid, thread.tid) not in known:
            yield thread.pid, thread.tid, thread.name, None, thread


def _first(native: _Native, python: _Python) -> list[Frame]:
    """Its stack, innermost first."""
    if native is None:
        return [_python(frame) for frame in python.frames] if python else []
    frames = merge(native.frames, python.frames if python else ())
    kernel = [Frame(name=frame, file="[kernel]") for frame in native.kernel_frames]
    return [*kernel, *(_native_or_python(frame) for frame in frames)]


def _second(native: _Native, python: _Python) -> list[Frame]:
    """Its stack at the second look, as far as it is known; native frames are, where they are the same."""
    same = [
        thread.same_at_second_look for thread in (native, python) if thread and thread.HasField("same_at_second_look")
    ]
    if same and all(same):
        return _first(native, python)
    if python is None or not python.HasField("same_at_second_look"):
        return []
    return [_python(frame) for frame in (python.frames if python.same_at_second_look else python.frames_after)]


def _tasks(snapshot: snapshot_pb2.Snapshot, names: _Names) -> Iterable[Stack]:
    for task in snapshot.asyncio_tasks:
        # Its chain is told outermost first.
        frames = [
            *map(_python, task.frames),
            *([Frame(name=f"[awaits {task.awaits}]", file="")] if task.awaits else []),
        ]
        yield Stack(
            process=names.process(task.pid),
            owner=f"task {task.name}".rstrip(),
            frames=tuple(frames),
            count=1,
            pid=task.pid,
            tid=0,
        )


def _stack(names: _Names, pid: int, tid: int, name: str, frames: Sequence[Frame]) -> Stack:
    return Stack(
        process=names.process(pid),
        owner=_owner(tid, name),
        frames=tuple(reversed(frames)),
        count=1,
        pid=pid,
        tid=tid,
    )


def _owner(tid: int, name: str) -> str:
    return f"thread {tid or '?'} {name}".rstrip()


def _native_or_python(frame: stack_pb2.NativeFrame | stack_pb2.Frame) -> Frame:
    if isinstance(frame, stack_pb2.Frame):
        return _python(frame)
    return Frame(name=frame.function or f"{frame.module or '?'}+{units.address(frame.offset)}", file=frame.module)


def _python(frame: stack_pb2.Frame) -> Frame:
    return Frame(name=frame.function, file=frame.file, line=frame.line)


def _sampled(frame: profile_pb2.ProfileFrame) -> Frame:
    return Frame(name=frame.function or frame.file or "?", file=frame.file, line=frame.line)


def _name(snapshots: Sequence[snapshot_pb2.Snapshot]) -> str:
    hosts = ", ".join(dict.fromkeys(snapshot.meta.host for snapshot in snapshots))
    began = snapshots[0].meta.started_at if snapshots else ""
    return " ".join(filter(None, (hosts, began)))
