"""Why a verdict is what it is: the facts it rests on, the rules that stand, and those that nearly do. Pure.

A rule is near when it would stand with one thing more than was seen: longer silence, a second look, what one collector
did not bring, or one engine at rest, at work or with a queue. Each of these is supposed in turn and every rule asked
again, so no rule has to know how it is missed. Suppositions prove nothing and change no verdict. A rule that lacks two
things is not near, but for silence and one more, where nothing stands or is near; nor is a rule that sockets and
processes contradict.

May import `judge.verdicts`, what that may, `judge.fleet`, and the standard library's data tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from freezeframe.judge.correlate import correlate, correlate_joined
from freezeframe.judge.correlate.facts import Connection, Debt, Engine, Facts, Gauges
from freezeframe.judge.correlate.joined import own_pid
from freezeframe.judge.correlate.thresholds import LONG_MS, TURNING_WAKES
from freezeframe.judge.fleet import Fleet
from freezeframe.judge.model import Evidence, Meta, Outcome, Request, Snapshot, Socket, Verdict
from freezeframe.judge.verdicts import RULES, judge
from freezeframe.judge.verdicts._words import count

_NOT_MISSING = frozenset({Outcome.Status.OK, Outcome.Status.UNSPECIFIED})
_WINDOW_MS = 1000.0
# Engines of which something is supposed, and clients that are told of one by one.
_MOST = 16
# References per fact.
_REFS = 2
_DEBTS = {
    Debt.CONNECTING: "get no connection",
    Debt.UNACCEPTED: "wait to be accepted",
    Debt.UNREAD: "have a request that was not read",
    Debt.ANSWER: "have a request that was read and not answered",
    Debt.UNDELIVERED: "have an answer that was not read",
    Debt.UNKNOWN: "cannot be told",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """A verdict that does not stand, and what it lacks: any one of these would do."""

    code: Verdict.Code
    hop: str
    holder_pids: tuple[int, ...]
    lacks: tuple[str, ...]
    # Of several hosts that of each holder.
    holder_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The chain from facts to the verdict."""

    # What the rules were given, hop by hop.
    facts: tuple[Evidence, ...]
    # Verdicts that stand, the principal one first, as this version judges the snapshot.
    fired: tuple[Verdict, ...]
    near: tuple[Near, ...]
    # Codes of the rules that neither stand nor are near, in the order in which they are asked.
    silent: tuple[Verdict.Code, ...]


def explain(snapshot: Snapshot) -> Explanation:
    """Judge the snapshot again and say how that came about."""
    return _explained(snapshot, lambda supposed: correlate([supposed]))


def explain_fleet(fleet: Fleet) -> Explanation:
    """Say how the verdict over several hosts came about, in their own words."""
    words = fleet.words
    told = _explained(
        words.joined.snapshot, lambda supposed: correlate_joined(replace(words.joined, snapshot=supposed))
    )
    return Explanation(
        facts=words.evidence(told.facts),
        fired=fleet.findings,
        near=tuple(
            replace(
                each,
                holder_pids=tuple(map(own_pid, each.holder_pids)),
                holder_hosts=words.hosts(each.holder_pids),
                lacks=tuple(map(words.sentence, each.lacks)),
            )
            for each in told.near
        ),
        silent=told.silent,
    )


_Correlate = Callable[[Snapshot], Facts]


def _explained(snapshot: Snapshot, correlated: _Correlate) -> Explanation:
    facts = correlated(snapshot)
    fired = judge(facts)
    near = _near(snapshot, facts, fired, correlated)
    told = {verdict.code for verdict in fired} | {each.code for each in near}
    # A rule's file is named after its code.
    codes = (Verdict.Code[rule.__module__.rpartition(".")[2].upper()] for rules in RULES for rule in rules)
    return Explanation(
        facts=tuple(_facts(facts)), fired=fired, near=near, silent=tuple(code for code in codes if code not in told)
    )


def _near(snapshot: Snapshot, facts: Facts, fired: Sequence[Verdict], correlated: _Correlate) -> tuple[Near, ...]:
    if not facts.connections:
        return ()
    found = _one_more(_suppositions(snapshot, facts, correlated), fired)
    if found or fired[0].code is not Verdict.Code.UNDETERMINED:
        return found
    # Where nothing stands and nothing is near, young requests may lack their age and one thing more.
    older = _older(snapshot)
    suppositions = _suppositions(older, correlated(older), correlated)
    return _one_more(((f"{_silence(facts)}; and {lack}", supposed) for lack, supposed in suppositions), fired)


def _one_more(suppositions: Iterable[tuple[str, Facts]], fired: Sequence[Verdict]) -> tuple[Near, ...]:
    """Ask every rule again with each supposition; what stands already is not near."""
    found: dict[tuple[Verdict.Code, str, tuple[int, ...]], list[str]] = {}
    standing = {(verdict.code, verdict.holder_pids) for verdict in fired}
    for lack, supposed in suppositions:
        for rules in RULES:
            for rule in rules:
                for verdict in rule(supposed):
                    if verdict.explains and (verdict.code, verdict.holder_pids) not in standing:
                        lacks = found.setdefault((verdict.code, verdict.hop, verdict.holder_pids), [])
                        lacks += [lack] if lack not in lacks else []
    return tuple(
        Near(code=code, hop=hop, holder_pids=pids, lacks=tuple(lacks)) for (code, hop, pids), lacks in found.items()
    )


def _suppositions(snapshot: Snapshot, facts: Facts, correlated: _Correlate) -> Iterator[tuple[str, Facts]]:
    """What is lacking, in words, and the facts as they would be with it."""
    if (facts.oldest_stuck_ms or 0.0) < LONG_MS:
        yield _silence(facts), correlated(_older(snapshot))
    if not facts.two_looks:
        yield "a second look in which nothing has moved", correlated(_looked_again(snapshot))
    for name, outcome in facts.outcomes.items():
        if outcome.status not in _NOT_MISSING:
            detail = f" ({outcome.detail})" if outcome.detail else ""
            lack = f"{name}, which ended {outcome.status.name}{detail}, with nothing that speaks against it"
            whole = replace(outcome, status=Outcome.Status.OK, pids_missed=())
            yield lack, replace(facts, outcomes={**facts.outcomes, name: whole})
    for engine in _in_question(facts):
        name = f"{engine.kind} (pid {engine.pid})"
        says = _says(engine)
        for words, supposed in _engine_states(engine, two_looks=facts.two_looks):
            if supposed != engine:
                engines = tuple(supposed if each is engine else each for each in facts.engines)
                yield f"{name} {words}: {says}", replace(facts, engines=engines)
        partners = [each for each in facts.engines if {each.kind, engine.kind} == {"prefill", "decode"}]
        if partners:
            _, rest = _engine_states(engine, two_looks=facts.two_looks)[0]
            both = {engine.pid: replace(rest, wakes_per_s=0.0), **{each.pid: _waits(each) for each in partners}}
            engines = tuple(both.get(each.pid, each) for each in facts.engines)
            lack = f"{name} at rest while {partners[0].kind} keeps requests for it: {says}"
            yield lack, replace(facts, engines=engines)


def _in_question(facts: Facts) -> Sequence[Engine]:
    """Engines of which something is supposed: all, or of very many those that owe most."""
    if len(facts.engines) <= _MOST:
        return facts.engines
    owed = {engine.pid: _owed(facts, engine) for engine in facts.engines}
    most = sorted((engine for engine in facts.engines if owed[engine.pid]), key=lambda engine: -owed[engine.pid])
    return most[:_MOST]


def _owed(facts: Facts, engine: Engine) -> int:
    return sum(each.debt is not Debt.NONE for each in facts.to_server(*engine.http_pids))


def _silence(facts: Facts) -> str:
    oldest = facts.oldest_stuck_ms
    has = "none waits for long yet" if oldest is None else f"the oldest has waited {oldest / 1000:.1f} s"
    return f"silence of {LONG_MS / 1000:.0f} s: {has}"


def _waits(engine: Engine) -> Engine:
    """An engine of a pair that has requests in hand for the other one."""
    gauges = replace(engine.gauges, handover=max(1.0, engine.gauges.handover or 0.0))
    return replace(engine, gauges=gauges, wakes_per_s=TURNING_WAKES, asleep=False)


def _engine_states(engine: Engine, *, two_looks: bool) -> Sequence[tuple[str, Engine]]:
    none = 0.0 if two_looks else None
    gauges = replace(engine.gauges, running=0.0, waiting=0.0, handover=0.0, tokens_delta=none, generated_delta=none)
    work = replace(gauges, running=max(1.0, engine.gauges.running or 0.0), handover=engine.gauges.handover)
    queue = replace(gauges, waiting=max(1.0, engine.gauges.waiting or 0.0), handover=engine.gauges.handover)
    rest = replace(engine, gauges=gauges, busy=False, busy_reason="it rests", batch="")
    if engine.gauges.known or engine.busy is False:
        # What is seen to be otherwise contradicts; it lacks nothing.
        return (("at rest, with empty queues", rest),)
    return (
        ("at rest, with empty queues", rest),
        ("with requests that run and count no token", replace(engine, gauges=work, busy=True, asleep=False)),
        ("with a queue that does not move", replace(engine, gauges=queue, asleep=False)),
    )


def _older(snapshot: Snapshot) -> Snapshot:
    """The snapshot as it would be had nothing that stood still moved for LONG_MS more."""
    return replace(
        snapshot,
        sockets=tuple(_older_socket(socket) for socket in snapshot.sockets),
        requests=tuple(_older_request(request) for request in snapshot.requests),
    )


def _older_socket(socket: Socket) -> Socket:
    if socket.bytes_in_delta or socket.bytes_out_delta:
        return socket
    return replace(
        socket,
        last_in_age_ms=_later(socket.last_in_age_ms),
        last_out_age_ms=_later(socket.last_out_age_ms),
        last_ack_age_ms=_later(socket.last_ack_age_ms),
        opened_age_ms=_later(socket.opened_age_ms),
    )


def _older_request(request: Request) -> Request:
    return replace(
        request,
        age_ms=request.age_ms + LONG_MS,
        last_in_age_ms=_later(request.last_in_age_ms),
        last_out_age_ms=_later(request.last_out_age_ms),
    )


def _later(age_ms: float | None) -> float | None:
    return None if age_ms is None else age_ms + LONG_MS


def _looked_again(snapshot: Snapshot) -> Snapshot:
    """The snapshot as it would be had a second look found everything as it was."""
    return replace(
        snapshot,
        meta=replace(snapshot.meta or Meta(), window_ms=_WINDOW_MS),
        sockets=tuple(
            replace(
                socket,
                bytes_in_delta=0.0,
                bytes_out_delta=0.0,
                recv_queue_after=socket.recv_queue,
                send_queue_after=socket.send_queue,
                lasting=True,
            )
            for socket in snapshot.sockets
        ),
        metrics=tuple(replace(metric, delta=0.0) for metric in snapshot.metrics),
    )


def _facts(facts: Facts) -> Iterator[Evidence]:
    """Say what is known of each hop, in the order of the path."""
    looks = f"two looks {facts.window_ms / 1000:.1f} s apart" if facts.two_looks else "one look"
    missing = [name for name, outcome in facts.outcomes.items() if outcome.status not in _NOT_MISSING]
    yield Evidence(text=f"{looks}; {'all collectors ended OK' if not missing else 'not whole: ' + ', '.join(missing)}")
    for client in facts.clients[:_MOST]:
        name = f"{client.name} (pid {client.pid})" if client.pid is not None else client.name
        oldest = "" if client.oldest_age_ms is None else f", the oldest for {client.oldest_age_ms / 1000:.1f} s"
        yield Evidence(
            text=f"client {name}: {client.in_flight} in flight{oldest}; {client.stuck} of them owed for long, "
            f"bytes move on {client.moving} of {count(client.connections, 'connection')}",
            ref=" ".join(client.refs[:_REFS]),
        )
    if others := facts.clients[_MOST:]:
        moving, all_ = sum(each.moving for each in others), sum(each.connections for each in others)
        yield Evidence(
            text=f"{count(len(others), 'more client')}: {sum(each.in_flight for each in others)} in flight; "
            f"{sum(each.stuck for each in others)} of them owed for long, bytes move on {moving} of "
            f"{count(all_, 'connection')}"
        )
    for router in facts.routers:
        yield from _connections(f"router (pid {router}), from clients", facts.to_server(router))
        yield from _connections(f"router (pid {router}), to engines", facts.from_client(router))
    shown = _in_question(facts)
    for engine in shown:
        name = f"{engine.kind} (pid {engine.pid})"
        yield from _connections(name, facts.to_server(*engine.http_pids))
        refs = engine.busy_refs or tuple(f"metrics[{index}]" for index in engine.gauges.indexes)
        yield Evidence(text=f"{name}: {_says(engine)}", ref=" ".join(refs[:_REFS]))
    if more := len(facts.engines) - len(shown):
        at_rest = [pid for each in facts.engines if each not in shown for pid in each.http_pids]
        yield from _connections(
            f"{count(more, 'more engine')}, of which nothing is supposed", facts.to_server(*at_rest)
        )


def _connections(name: str, connections: Sequence[Connection]) -> Iterator[Evidence]:
    of_debt: dict[Debt, list[Connection]] = {}
    for connection in connections:
        of_debt.setdefault(connection.debt, []).append(connection)
    if not connections:
        yield Evidence(text=f"{name}: no connection")
    for debt, several in of_debt.items():
        ages = [c.age_ms for c in several if c.age_ms is not None]
        oldest = f", the oldest for {max(ages) / 1000:.1f} s" if ages and debt is not Debt.NONE else ""
        moving = sum(c.moving for c in several)
        state = f"without a debt, bytes move on {moving}" if debt is Debt.NONE else _DEBTS[debt]
        refs = [ref for c in several[:_REFS] for ref in c.refs[-1:]]
        yield Evidence(text=f"{name}: {count(len(several), 'connection')} {state}{oldest}", ref=" ".join(refs))


def _says(engine: Engine) -> str:
    """What is known of its work: by what it does, and by its numbers."""
    works = {True: "it works", False: "it rests", None: "whether it works is not known"}[engine.busy]
    reason = f" ({engine.busy_reason})" if engine.busy_reason else ""
    batch = f"; a batch stands at {engine.batch}" if engine.batch else ""
    return f"{works}{reason}{batch}; {_numbers(engine.gauges)}"


def _numbers(gauges: Gauges) -> str:
    if not gauges.known:
        return "its numbers are not known"
    tokens = "" if gauges.tokens_delta is None else f", {gauges.tokens_delta:.0f} tokens in the window"
    handover = "" if gauges.handover is None else f", {gauges.handover:.0f} in its disaggregation queues"
    return f"it says {gauges.running:.0f} running, {gauges.waiting:.0f} waiting{handover}{tokens}"
