"""Processes: gone, new, restarted, and those that changed their state."""

from __future__ import annotations

from freezeframe.client.compare.model import ProcessChange
from freezeframe.client.compare.side import Side
from freezeframe.client.render.values import enum_name
from freezeframe.v1 import process_pb2

Process = process_pb2.Process
# Letters that say more than that it ran or slept at that moment.
_TELLING = frozenset("TtZXD")
_Identity = tuple[str, str, str, str]


def compare(before: Side, after: Side) -> tuple[ProcessChange, ...]:
    """Compare the processes of two snapshots of one boot; unchanged ones are "same"."""
    gone, new, changes = [], [], []
    for pid, process in before.processes.items():
        later = after.processes.get(pid)
        if later is None:
            gone.append(process)
        elif _is_another(process, later):
            changes.append(_change(process, "restarted", later, pid_after=None))
        else:
            found = _differences(process, later)
            cpu = max(0.0, later.cpu_ms - process.cpu_ms) if later.cpu_ms and process.cpu_ms else None
            changes.append(_change(process, "changed" if found else "same", later, cpu_ms=cpu, changes=found))
    new = [process for pid, process in after.processes.items() if pid not in before.processes]
    for process in list(gone):
        successor = _successor(process, gone, new)
        if successor is not None:
            changes.append(_change(process, "restarted", successor, pid_after=successor.pid))
            gone.remove(process)
            new.remove(successor)
    changes += [_change(each, "unclear" if after.unseen("processes", each.pid) else "gone", each) for each in gone]
    changes += [_change(each, "unclear" if before.unseen("processes", each.pid) else "new", each) for each in new]
    return tuple(changes)


def anew(before: Side, after: Side) -> tuple[ProcessChange, ...]:
    """All of them, across a reboot."""
    return (
        *(_change(each, "gone", each) for each in before.processes.values()),
        *(_change(each, "new", each) for each in after.processes.values()),
    )


def _is_another(process: Process, later: Process) -> bool:
    return bool(process.start_ticks and later.start_ticks and process.start_ticks != later.start_ticks)


def _successor(process: Process, gone: list[Process], new: list[Process]) -> Process | None:
    """Find the one new process that is what the one gone process was, and began later."""
    same = [each for each in new if _identity(each) == _identity(process) and each.start_ticks > process.start_ticks]
    alike = [each for each in gone if _identity(each) == _identity(process)]
    servers = enum_name(process, "role") not in {"UNSPECIFIED", "OTHER", "CLIENT"}
    return same[0] if servers and len(same) == 1 and len(alike) == 1 else None


def _identity(process: Process) -> _Identity:
    return (enum_name(process, "role"), process.title or process.comm, process.disaggregation, process.rank)


def _differences(process: Process, later: Process) -> tuple[str, ...]:
    found = []
    if process.state != later.state and _TELLING & {process.state, later.state}:
        found.append(f"state {process.state}, then {later.state}")
    if process.frozen != later.frozen:
        found.append("frozen" if later.frozen else "no longer frozen")
    if process.role != later.role:
        found.append(f"role {enum_name(process, 'role')}, then {enum_name(later, 'role')}")
    return tuple(found)


def _change(
    process: Process,
    state: str,
    later: Process,
    *,
    pid_after: int | None = None,
    cpu_ms: float | None = None,
    changes: tuple[str, ...] = (),
) -> ProcessChange:
    return ProcessChange(
        state=state,
        pid=process.pid,
        pid_after=pid_after,
        role=enum_name(later, "role"),
        title=later.title or later.comm,
        cpu_ms=cpu_ms,
        changes=changes,
    )
