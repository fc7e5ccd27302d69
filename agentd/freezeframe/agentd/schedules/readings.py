"""What triggers are evaluated on: what a worker that stays hands over every second, as one value per name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from freezeframe.agentd.watching import on_path
from freezeframe.judge.model import Edge, Process, Snapshot

Role = Process.Role

# Processes that a path cannot lose or have stopped without harm.
PATH = frozenset(Role) - {Role.UNSPECIFIED, Role.OTHER, Role.CLIENT, Role.LAUNCHER}
_ENDED = frozenset("ZX")
_STOPPED = frozenset("Tt")


def of_path(processes: Iterable[Process]) -> tuple[Process, ...]:
    """Those that take part in serving."""
    return tuple(process for process in processes if process.role in PATH)


def values(part: Snapshot, known: Sequence[Process], living: Mapping[tuple[int, int], Process]) -> dict[str, float]:
    """The value of each name of `conditions.NAMES`, as far as this part tells it.

    `known` are the processes of the host with their roles; `living` are those of the path that were seen alive before,
    by pid and start.
    """
    found: dict[str, float] = {}
    if part.recorder is not None:
        found |= _of_edges(part.edges, known)
    if part.processes:
        found["stopped"] = float(sum(each.state in _STOPPED or each.frozen for each in part.processes))
        found["exits"] = float(len(ended(part, living)))
    found["backlog"] = float(sum(each.backlog or 0 for each in part.sockets))
    found["xids"] = float(sum(each.kind == "xid" for each in part.kernel_events))
    for pressure in part.host.pressure if part.host is not None else ():
        if pressure.some_window is not None:
            found[f"psi_{pressure.resource}"] = pressure.some_window
    return found


def ended(part: Snapshot, living: Mapping[tuple[int, int], Process]) -> tuple[Process, ...]:
    """Those of this part that have ended and were seen alive before."""
    return tuple(each for each in part.processes if each.state in _ENDED and key_of(each) in living)


def named(processes: Iterable[Process]) -> str:
    """Name them for people: "scheduler 4711, detokenizer 4712"."""
    return ", ".join(f"{each.role.name.lower().replace('_', '-')} {each.pid}" for each in processes)


def alive(part: Snapshot) -> dict[tuple[int, int], Process]:
    """Processes of this part that have not ended."""
    return {key_of(each): each for each in part.processes if each.state not in _ENDED}


def key_of(process: Process) -> tuple[int, int]:
    """Tell a process apart from a later one with its pid."""
    return process.pid, int(process.start_ticks)


def _of_edges(edges: Iterable[Edge], known: Sequence[Process]) -> dict[str, float]:
    serving = {process.pid for process in known if process.role in PATH}
    # What the path's own processes ask each other is no client's.
    outer = [edge for edge in on_path(edges, known).edges if edge.client_pid not in serving]
    open_edges = [edge for edge in outer if edge.owed]
    silent: dict[int, list[Edge]] = {}
    for edge in open_edges:
        silent.setdefault(edge.server_pid or 0, []).append(edge)
    return {
        "requests": float(sum(edge.owed for edge in outer)),
        "longest_wait_s": max((edge.longest_wait_ms or 0.0 for edge in open_edges), default=0.0) / 1000.0,
        "oldest_s": max((edge.oldest_owed_age_ms or 0.0 for edge in open_edges), default=0.0) / 1000.0,
        "silent_s": max(map(_silent_ms, silent.values()), default=0.0) / 1000.0,
        "answer_bytes": sum(edge.bytes_down_per_s or 0.0 for edge in outer),
        "request_bytes": sum(edge.bytes_up_per_s or 0.0 for edge in outer),
    }


def _silent_ms(edges: Sequence[Edge]) -> float:
    """For how long one server with requests in flight has sent nothing to any of these clients."""
    last = min((edge.last_down_age_ms for edge in edges if edge.last_down_age_ms is not None), default=None)
    oldest = max(edge.oldest_owed_age_ms or 0.0 for edge in edges)
    return oldest if last is None else min(last, oldest)
