"""Processes of one parallel group side by side: where each stands at both looks, equal ones together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from freezeframe.judge.correlate.phases import Standing, standing
from freezeframe.judge.correlate.stacks import Mains
from freezeframe.judge.model import Process, Rank

Role = Process.Role

_RANKED = frozenset({Role.SCHEDULER, Role.WORKER})
# Fewer ranks have no minority.
_LEAST = 3
_TP = re.compile(r"\bTP(\d+)\b")


def find_ranks(processes: Iterable[Process], mains: Mains) -> tuple[Rank, ...]:
    """Every scheduler and worker with its phase, by engine and parallel group; in each group the minority first.

    A rank whose stack was not seen has neither phase nor frame.
    """
    found: list[Rank] = []
    number = 0
    for members in parallel_groups(processes):
        looks = {process.pid: stands(process.pid, mains) for process in members}
        keys = {pid: tuple(each.key for each in seen) for pid, seen in looks.items()}
        together = Counter(keys.values())
        most = max(together.values())
        numbers = {key: number + index for index, key in enumerate(together)}
        number += len(together)
        ranks = []
        for process in members:
            seen, count = looks[process.pid], together[keys[process.pid]]
            rank = Rank(
                pid=process.pid,
                rank=process.rank,
                engine_pid=process.engine_pid,
                group=numbers[keys[process.pid]],
                minority=len(members) >= _LEAST and count < most,
            )
            if seen:
                entry = mains.get(process.pid)
                rank = replace(
                    rank,
                    frame=seen[0].place,
                    phase=seen[0].phase,
                    phase_after=seen[1].phase if len(seen) > 1 else "",
                    frame_after=seen[1].place if len(seen) > 1 else "",
                    same_at_second_look=entry[1].same_at_second_look if entry else None,
                    cpu_ms_delta=process.threads[0].cpu_ms_delta if process.threads else None,
                )
            ranks.append(rank)
        found += sorted(ranks, key=lambda rank: (not rank.minority, together[keys[rank.pid]]))
    return tuple(found)


def stands(pid: int, mains: Mains) -> tuple[Standing, ...]:
    """Where the main thread of a process is: one look, or two; empty when its stack was not seen."""
    entry = mains.get(pid)
    if entry is None:
        return ()
    thread = entry[1]
    first = standing(thread.frames)
    if thread.same_at_second_look is None:
        return (first,)
    return (first, standing(thread.frames_after) if thread.frames_after else first)


def parallel_groups(processes: Iterable[Process]) -> tuple[tuple[Process, ...], ...]:
    """Ranks that have collectives in common, each group by its numbers.

    Those of one engine, kind and pipeline stage; data-parallel replicas apart, unless the tensor-parallel numbers run
    through all of them, as with attention that is data-parallel.
    """
    stages: dict[tuple[int, Role, str], list[Process]] = {}
    for process in processes:
        if process.role in _RANKED:
            stages.setdefault((process.engine_pid or process.pid, process.role, _label(process, "PP")), []).append(
                process
            )
    groups = []
    for members in stages.values():
        numbers = [number for process in members if (number := tensor_number(process)) is not None]
        if len(numbers) == len(members) and len(set(numbers)) == len(numbers):
            groups.append(members)
            continue
        replicas: dict[str, list[Process]] = {}
        for process in members:
            replicas.setdefault(_label(process, "DP"), []).append(process)
        groups += replicas.values()
    return tuple(tuple(sorted(group, key=lambda p: (tensor_number(p) or 0, p.rank, p.pid))) for group in groups)


def tensor_number(process: Process) -> int | None:
    """The tensor-parallel number of a rank; None when its title tells none."""
    found = _TP.search(process.rank)
    return int(found[1]) if found else None


def _label(process: Process, kind: str) -> str:
    return next((label for label in process.rank.split() if re.fullmatch(rf"{kind}\d+", label)), "")


def rank_index(ranks: Sequence[Rank]) -> Mapping[int, int]:
    """Position of each process among the ranks."""
    return {rank.pid: index for index, rank in enumerate(ranks)}
