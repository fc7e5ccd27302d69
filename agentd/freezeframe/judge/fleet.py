"""Snapshots of several hosts -> one verdict over the whole path: pure.

The hosts are joined to one snapshot (`correlate.joined`), roles are found anew over all of them, and the same facts and
rules judge it. What comes out is said in the hosts' own words again: pids are those of their hosts and name them where
text has them ("pid 4711 on gpu-07"), and references begin with the host ("gpu-07/sockets[12]").

A host that did not answer is an unknown: nothing is concluded from it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import groupby

from freezeframe.judge.correlate import correlate_joined
from freezeframe.judge.correlate.joined import Joined, at_instant, distinct_parts, join_parts, number_of, own_pid
from freezeframe.judge.correlate.roles import assign_roles
from freezeframe.judge.model import Attribution, Confidence, Evidence, Meta, Snapshot, Verdict
from freezeframe.judge.verdicts import concluded

# Captures that began within this are of one instant: a capture itself takes as long.
_AT_ONCE_MS = 250.0
# Hosts that are named where the same is to be said of several.
_NAMED = 3
_WELL = frozenset({Verdict.Code.NOT_STUCK, Verdict.Code.IDLE})
# "pid 4711", "pid 4711, 4712".
_PIDS = re.compile(r"\bpid (\d+(?:, \d+)*)")
_NUMBER = re.compile(r"(?<![\w.])\d{7,10}(?![\w.])")
# "sockets[12]", "processes[3].threads[0]".
_REF = re.compile(r"(\w+)\[(\d+)\](.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What several hosts tell together."""

    # Over the whole path, in the words of the hosts; the principal one first.
    findings: tuple[Verdict, ...]
    # All hosts as one, with edges, hops and requests; its pids are distinct (`correlate.joined`).
    snapshot: Snapshot
    # Hosts by their number in those pids.
    names: Mapping[int, str]
    # What the rules were given, and what puts their words into the hosts' own.
    words: Words

    @property
    def verdict(self) -> Verdict:
        """The principal finding."""
        return self.findings[0]


def conclude_fleet(
    snapshots: Iterable[Snapshot],
    unreached: Mapping[str, str] = {},
    ahead_ms: Sequence[float | None] = (),
    positions: Sequence[Mapping[str, Sequence[int]]] = (),
) -> Fleet:
    """Judge the whole path.

    `unreached` says of each host that brought nothing why, `ahead_ms` of each snapshot by how much its host's clock is
    ahead of that of who asked; None where nobody knows. `positions` is given where the snapshots are not whole: of each
    the positions that records had in it by kind, where those are not the present ones.

    Raises:
        ValueError: no snapshot was given.
    """
    parts = distinct_parts(snapshots)
    if not parts:
        raise ValueError("judging no snapshot at all")
    names = dict(enumerate(distinct_names([(each.meta or Meta()).host for each in parts]), 1))
    late = _late(parts, ahead_ms)
    for number, part in enumerate(parts, 1):
        earlier = at_instant(part, late.get(number, 0.0))
        parts[number - 1] = replace(earlier, meta=replace(part.meta or Meta(), host=names[number]))
    joined = join_parts(parts)
    joined = replace(joined, snapshot=_with_roles(joined.snapshot))
    missing = tuple(f"{host} brought nothing: {why}" for host, why in unreached.items())
    snapshot = concluded(joined.snapshot, correlate_joined(joined))
    if unreached and snapshot.findings[0].code in _WELL:
        snapshot = replace(snapshot, findings=(_as_far_as_known(snapshot.findings[0], len(parts), len(unreached)),))
    told = Words(joined, names, positions)
    findings = tuple(
        told.verdict(replace(verdict, unknowns=(*missing, *verdict.unknowns, *_apart(names, late))))
        for verdict in snapshot.findings
    )
    return Fleet(findings=findings, snapshot=snapshot, names=names, words=told)


def _apart(names: Mapping[int, str], late: Mapping[int, float]) -> tuple[str, ...]:
    if len(late) <= _NAMED:
        return tuple(
            f"{names[number]} was looked at {by / 1000:.1f} s after the first host: its ages are lessened by that"
            for number, by in late.items()
        )
    first = ", ".join(names[number] for number in list(late)[:_NAMED])
    longest_s = max(late.values()) / 1000
    more = f"{first} and {len(late) - _NAMED} more"
    return (f"{more} were looked at up to {longest_s:.1f} s after the first host: their ages are lessened by that",)


def _as_far_as_known(well: Verdict, told: int, missing: int) -> Verdict:
    """Nobody is accused, and nothing is called well that was not looked at."""
    hosts = "1 host that answered" if told == 1 else f"{told} hosts that answered"
    return replace(
        well,
        code=Verdict.Code.UNDETERMINED,
        confidence=Confidence.Level.LOW,
        summary=f"Of the {hosts}: {well.summary} {missing} brought nothing.",
    )


def distinct_names(hosts: Sequence[str]) -> list[str]:
    """A name for each host, all different, as references and words have them."""
    found = [host or "unnamed host" for host in hosts]
    counts = Counter(found)
    seen: Counter[str] = Counter()
    for position, name in enumerate(found):
        if counts[name] > 1:
            seen[name] += 1
            found[position] = f"{name}#{seen[name]}"
    return found


def _late(snapshots: Sequence[Snapshot], ahead_ms: Sequence[float | None]) -> dict[int, float]:
    """Host number -> how long after the first one it was looked at; without those that were looked at with it."""
    began = {}
    for number, (snapshot, ahead) in enumerate(zip(snapshots, ahead_ms, strict=False), 1):
        moment = _milliseconds((snapshot.meta or Meta()).started_at)
        if moment is not None and ahead is not None:
            began[number] = moment - ahead
    first = min(began.values(), default=0.0)
    return {number: at - first for number, at in began.items() if at - first > _AT_ONCE_MS}


def _milliseconds(moment: str) -> float | None:
    try:
        # Python 3.10 knows no "Z".
        return datetime.fromisoformat(moment.replace("Z", "+00:00")).astimezone(timezone.utc).timestamp() * 1000
    except (ValueError, OverflowError):
        return None


def _with_roles(snapshot: Snapshot) -> Snapshot:
    """The snapshot with roles as the whole path shows them."""
    configured = {p.pid: p.role for p in snapshot.processes if p.role_reason == "configured"}
    return replace(snapshot, processes=assign_roles(snapshot.processes, snapshot.sockets, configured, snapshot.metrics))


class Words:
    """Puts what was judged of the joined snapshot into the hosts' own words."""

    joined: Joined

    def __init__(
        self, joined: Joined, names: Mapping[int, str], positions: Sequence[Mapping[str, Sequence[int]]]
    ) -> None:
        self.joined = joined
        self._names = names
        self._positions = positions
        self._pids = frozenset(process.pid for process in joined.snapshot.processes if process.pid)

    def verdict(self, verdict: Verdict) -> Verdict:
        """All of it."""
        return replace(
            verdict,
            holder_pids=tuple(own_pid(pid) for pid in verdict.holder_pids),
            holder_hosts=self.hosts(verdict.holder_pids),
            summary=self.sentence(verdict.summary),
            evidence=self.evidence(verdict.evidence),
            ruled_out=tuple(
                replace(each, hop=self.sentence(each.hop), evidence=self.evidence(each.evidence))
                for each in verdict.ruled_out
            ),
            unknowns=tuple(map(self.sentence, verdict.unknowns)),
            attribution=tuple(map(self._attribution, verdict.attribution)),
            next_steps=tuple(map(self._step, verdict.next_steps)),
        )

    def hosts(self, pids: Iterable[int]) -> tuple[str, ...]:
        """The host of each."""
        return tuple(self._names.get(number_of(pid), "") for pid in pids)

    def sentence(self, text: str) -> str:
        """The text with its pids as their hosts have them: "pid 4711 on gpu-07"."""
        listed = _PIDS.sub(lambda found: f"pid {self._listed(found[1])}", text)
        return _NUMBER.sub(lambda found: self._listed(found[0]), listed)

    def _listed(self, numbers: str) -> str:
        pids = [int(number) for number in numbers.split(", ")]
        if not all(pid in self._pids for pid in pids):
            return numbers
        groups = ((number, [str(own_pid(p)) for p in of]) for number, of in groupby(pids, number_of))
        return " and ".join(f"{', '.join(of)} on {self._names[number]}" for number, of in groups)

    def evidence(self, several: Iterable[Evidence]) -> tuple[Evidence, ...]:
        """Each with its text, and its references into the snapshots of the hosts."""
        return tuple(
            replace(each, text=self.sentence(each.text), ref=" ".join(map(self._ref, each.ref.split())))
            for each in several
        )

    def _ref(self, ref: str) -> str:
        """A reference into the snapshot of a host; of what was made over all hosts it stays as it is."""
        found = _REF.fullmatch(ref)
        if found is None or found[1] not in self.joined.first:
            return ref
        kind, index = found[1], int(found[2])
        starts = self.joined.first[kind]
        number = max(n for n, start in enumerate(starts, 1) if start <= index)
        own = index - starts[number - 1]
        moved = self._positions[number - 1].get(kind) if self._positions else None
        return f"{self._names[number]}/{kind}[{own if moved is None else moved[own]}]{found[3]}"

    def _attribution(self, each: Attribution) -> Attribution:
        if each.pid is None:
            return each
        return replace(each, pid=own_pid(each.pid), host=self._names.get(number_of(each.pid), ""))

    def _step(self, step: str) -> str:
        """A command with the pids of the host that it is for, which its comment names."""
        command, mark, why = step.partition("  # ")
        hosts: list[str] = []

        def own(found: re.Match[str]) -> str:
            pid = int(found[0])
            if pid not in self._pids:
                return found[0]
            hosts.append(self._names[number_of(pid)])
            return str(own_pid(pid))

        command = _NUMBER.sub(own, command)
        if not mark:
            return self.sentence(step)
        told = not hosts or why.startswith("on ")
        at = "" if told else f"on {', '.join(dict.fromkeys(hosts))}: "
        return f"{command}{mark}{at}{self.sentence(why)}"
