"""RANKS_DIVERGED: ranks of one parallel group wait for each other in different collectives, and none can go on.

Proof, with two looks: every rank of a group of two or more stands in a collective (all_reduce, broadcast, all_gather
and their kind), the same stack at both looks, asleep at both and without one context switch in between; at least two
stand in different operations, or in the same one that different functions of the engine asked for; the group is whole:
its tensor-parallel numbers run from 0 without a gap, its flags name no further hosts and no larger size; requests have
been owed for STUCK_MS or begun answers are quiet, and no byte went to any client. HIGH. Holders are the minority where
there is one, else all.

Lookalikes: rank 0 in its idle sleep while the others wait in a broadcast for it, as an idle engine does; a rank that
still computes, or is stopped, while the others wait for it; ranks caught at different steps of a loop that turns (they
switch); pipeline stages that send and receive; replicas that have nothing in common. A wait that spins for a GPU is
none of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from freezeframe.judge.correlate.facts import Engine, Facts
from freezeframe.judge.correlate.hops import scheduler_hop
from freezeframe.judge.correlate.phases import COLLECTIVES
from freezeframe.judge.correlate.ranks import parallel_groups, rank_index, stands, tensor_number
from freezeframe.judge.labels import folded
from freezeframe.judge.model import Confidence, Evidence, Process, Verdict
from freezeframe.judge.verdicts._batch import with_a_client
from freezeframe.judge.verdicts._proof import for_clients, gets_bytes, runs, stalled, stuck
from freezeframe.judge.verdicts._steps import known, log, step
from freezeframe.judge.verdicts._words import count, evidence, oldest, quietest, seconds, socket_refs, who

_HOSTS = frozenset({"--nnodes", "--node-rank", "--headless"})
_SIZES = frozenset({"--tp-size", "--tp", "--tensor-parallel-size", "-tp"})
# Operations that a group must be in.
_DIFFERENT = 2
# Ranks that are spelled out.
_SPELLED = 8


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per parallel group."""
    if not facts.two_looks:
        return ()
    found = []
    for engine in facts.engines:
        members = [facts.processes[pid] for pid in engine.scheduler_pids]
        for group in parallel_groups(members):
            verdict = _group(facts, engine, group)
            if verdict is not None:
                found.append(verdict)
    return tuple(found)


def _group(facts: Facts, engine: Engine, group: Sequence[Process]) -> Verdict | None:
    places = {process.pid: place for process in group if (place := _waits_in(facts, process)) is not None}
    counts = Counter(places.values())
    if len(counts) < _DIFFERENT or len(places) < len(group) or not _whole(facts, engine, group):
        return None
    served = facts.to_server(*engine.http_pids)
    owed, begun = stuck(served), stalled(facts, engine)
    explains = for_clients(facts, owed) + with_a_client(facts, begun)
    if not explains or gets_bytes(served) or not runs(facts, *engine.pids):
        return None
    most = max(counts.values())
    minority = tuple(pid for pid, place in places.items() if counts[place] < most)
    holders = minority or tuple(places)
    labels = {place: folded(p.rank for p in group if places[p.pid] == place) for place in counts}
    where = "; ".join(f"{labels[place]} in {place}" for place in sorted(counts, key=counts.__getitem__))
    hop = scheduler_hop(engine.kind)
    since = seconds(max(oldest(owed) or 0.0, quietest(begun) or 0.0))
    return Verdict(
        code=Verdict.Code.RANKS_DIVERGED,
        hop=hop,
        holder_pids=holders,
        summary=f"The {count(len(group), 'rank')} of the {hop} wait for each other in different collectives: {where}; "
        f"{count(len(owed) + len(begun), 'request')} of {who(facts, (*owed, *begun))} wait, oldest {since}.",
        confidence=Confidence.Level.HIGH,
        evidence=(
            *_table(facts, group, places, holders),
            evidence(
                f"{count(len(owed) + len(begun), 'request')} wait for them, the oldest for {since}",
                *socket_refs([*owed, *begun]),
            ),
        ),
        next_steps=(
            step(
                "freezeframe show FILE ranks python",
                "what led each rank there; compare the conditions above those calls",
            ),
            log(facts, holders[0], "which branch one of them took that the others did not"),
            known("ranks of one group in different collectives: one waits in NCCL, its peers elsewhere"),
        ),
        explains=explains,
    )


def _waits_in(facts: Facts, process: Process) -> str | None:
    """The collective that the main thread of a rank waits in over the whole window; None when it may go on."""
    entry = facts.mains.get(process.pid)
    if entry is None or not entry[1].same_at_second_look or entry[1].doubt or not process.threads:
        return None
    main = process.threads[0]
    moved = (main.voluntary_switches_delta, main.involuntary_switches_delta)
    if moved != (0, 0) or main.state != "S" or main.state_after != "S":
        return None
    look = stands(process.pid, facts.mains)[0]
    return look.place if look.phase in COLLECTIVES else None


def _whole(facts: Facts, engine: Engine, group: Sequence[Process]) -> bool:
    """Whether no rank of this group can be elsewhere."""
    numbers = [tensor_number(process) for process in group]
    if sorted(number for number in numbers if number is not None) != list(range(len(group))):
        return False
    leader = facts.processes.get(engine.pid)
    for word, value in pairwise((*(leader.argv if leader else ()), "")):
        flag, equals, joined = word.partition("=")
        given = joined if equals else value
        if flag in _HOSTS and given not in {"1", "0"}:
            return False
        if flag in _SIZES and given.isdecimal() and int(given) > len(group):
            return False
    return True


def _table(
    facts: Facts, group: Sequence[Process], places: dict[int, str], holders: Sequence[int]
) -> tuple[Evidence, ...]:
    """The ranks, the minority first."""
    index = rank_index(facts.ranks)
    found = []
    for process in sorted(group, key=lambda each: each.pid not in holders)[:_SPELLED]:
        entry = facts.mains.get(process.pid)
        refs = (f"ranks[{index[process.pid]}]", *((f"python_threads[{entry[0]}]",) if entry else ()))
        text = f"{process.rank} (pid {process.pid}) is in {places[process.pid]} at both looks and never woke in between"
        found.append(evidence(text, *refs))
    return tuple(found)
