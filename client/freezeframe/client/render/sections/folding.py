"""Equal stacks shown once: those of one process, and, for the ranks of one engine, those of one thread of each.

Among the ranks the minority comes first: it is the suspect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from freezeframe.client.render.document import Block, Lines
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.judge.labels import folded

_NAMED = 4
_ADDRESS = re.compile(r"0x[0-9a-f]+")
# How the line of what a thread waits in begins.
WAITS = "waits in "
# Fewer ranks have no minority.
_LEAST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One stack and whose it is."""

    pid: int
    # "thread 4712 worker".
    owner: str
    # What threads of several ranks have in common: "worker"; empty when nothing.
    thread: str
    lines: tuple[str, ...]


def fold(stacks: Iterable[Shown]) -> tuple[Block, ...]:
    """One block per process and stack, in order of appearance, with the names of all that share it."""
    groups: dict[tuple[int, tuple[str, ...]], list[Shown]] = {}
    for each in stacks:
        groups.setdefault((each.pid, each.lines), []).append(each)
    return tuple(
        Lines(title=f"pid {pid}, {names([each.owner for each in members])}", lines=lines)
        for (pid, lines), members in groups.items()
    )


def fold_ranks(stacks: Sequence[Shown], snapshot: Snapshot) -> tuple[Block, ...]:
    """The ranks of each engine first, thread by thread, then the other processes as `fold` shows them."""
    labels = {rank.pid: rank.rank for rank in snapshot.ranks if rank.rank and rank.engine_pid}
    engines = {rank.pid: rank.engine_pid for rank in snapshot.ranks}
    # By engine and thread name, then by stack.
    threads: dict[tuple[int, str], dict[tuple[str, ...], list[Shown]]] = {}
    others = []
    for each in stacks:
        if each.pid not in labels or not each.thread:
            others.append(each)
            continue
        # The address of a lock is each process's own.
        lines = tuple(_ADDRESS.sub("0x", line) if line.startswith(WAITS) else line for line in each.lines)
        threads.setdefault((engines[each.pid], each.thread), {}).setdefault(lines, []).append(each)
    blocks: list[Block] = []
    for (_, thread), groups in threads.items():
        counts = {lines: len({each.pid for each in members}) for lines, members in groups.items()}
        ranks = {each.pid for members in groups.values() for each in members}
        if len(ranks) == 1:
            others += [each for members in groups.values() for each in members]
            continue
        order = sorted(groups, key=counts.__getitem__) if len(ranks) >= _LEAST else list(groups)
        blocks += (_ranked(thread, groups[lines], labels) for lines in order)
    return (*blocks, *fold(others))


def _ranked(thread: str, members: Sequence[Shown], labels: dict[int, str]) -> Lines:
    pids = list(dict.fromkeys(each.pid for each in members))
    where = f"{folded(labels[pid] for pid in pids)} (pid{'s' if len(pids) > 1 else ''} {folded(map(str, pids))})"
    many = f", {len(members)} of them" if len(members) > len(pids) else ""
    return Lines(title=f"{where}, thread {thread}{many}", lines=members[0].lines)


def names(owners: Sequence[str]) -> str:
    """Say who shares a stack: one by its name, several with their number."""
    shown = ", ".join(owners[:_NAMED])
    if len(owners) == 1:
        return shown
    more = f" and {len(owners) - _NAMED} more" if len(owners) > _NAMED else ""
    return f"{len(owners)} with the same stack: {shown}{more}"
