"""Steps that several proofs share. Each is conservative: what was not collected is not proved."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from freezeframe.judge.correlate.facts import Connection, Debt, Engine, Facts
from freezeframe.judge.correlate.stacks import blocked_in, rests_in_loop
from freezeframe.judge.correlate.thresholds import (
    DELAYED,
    EARLIER_QUESTION,
    ENGINE_KEEP_ALIVE_MS,
    GOT_ON,
    LONG_MS,
    STARVED,
    STUCK_MS,
)
from freezeframe.judge.model import Endpoint, Frame, Process, PythonThread

_CAN_RUN = frozenset({"R", "S", "I"})

# Routers that send both legs of a disaggregated request at once. Others send decode's after prefill's is over.
_BOTH_LEGS_AT_ONCE = frozenset({"sglang-router", "smg"})

# Engines that serve with uvicorn and its keep-alive of 5 s.
_UVICORN = frozenset({"sglang", "vllm"})

# What a router's list of workers becomes.
WORKER = "router_worker_healthy"


def stuck(connections: Iterable[Connection], *debts: Debt) -> list[Connection]:
    """Connections whose client has waited for long and got nothing, of these debts or of any."""
    return [c for c in connections if c.stuck and (not debts or c.debt in debts)]


def runs(facts: Facts, *pids: int) -> bool:
    """Whether each process is known to be able to run: then it is its own fault that it does not act.

    Without this, a stopped engine would pass for one that does not accept, and a starved one for a silent one.
    """
    # What is hidden of threads without CAP_SYS_ADMIN, their kernel stacks, says nothing of states and CPU time.
    if not facts.looked_at("snapshot_processes", pids):
        return False
    for pid in pids:
        process = facts.processes.get(pid)
        if process is None or process.exited or process.frozen or starved(facts, process):
            return False
        # D at one of two looks is an ordinary read.
        after = process.threads[0].state_after if process.threads else ""
        if process.state not in _CAN_RUN and not (process.state == "D" and after in _CAN_RUN):
            return False
    return True


def starved(facts: Facts, process: Process) -> bool:
    """Whether its main thread wanted to run at both looks and got next to no CPU in between."""
    if not facts.two_looks or not process.threads:
        return False
    main = process.threads[0]
    if main.cpu_ms_delta is None or main.state != "R" or main.state_after != "R":
        return False
    return main.cpu_ms_delta < STARVED * facts.window_ms


def kept_waiting(facts: Facts, process: Process) -> bool:
    """Whether its main thread was ready to run for most of the window, without a CPU: also between naps."""
    if not facts.two_looks or not process.threads:
        return False
    main = process.threads[0]
    if main.run_delay_ms_delta is None or main.cpu_ms_delta is None:
        return False
    return main.run_delay_ms_delta >= DELAYED * facts.window_ms and main.cpu_ms_delta < GOT_ON * facts.window_ms


def for_clients(facts: Facts, waiting: Iterable[Connection]) -> int:
    """How many of these requests some client can be waiting for: a router's health checks are nobody's requests."""
    counts: dict[int | None, int] = {}
    for connection in waiting:
        router = connection.client_pid if connection.client_pid in facts.routers else None
        counts[router] = counts.get(router, 0) + 1
    direct = counts.pop(None, 0)
    return direct + sum(min(n, len(facts.stuck_at(r or 0))) for r, n in counts.items())


def sockets_seen(facts: Facts, *pids: int) -> bool:
    """Whether what is not among the sockets of these processes is known not to be there."""
    return bool(pids) and facts.collected("snapshot_sockets", pids)


def stalled(facts: Facts, engine: Engine) -> list[Connection]:
    """Connections of an engine that are open and quiet for too long to be idle: answers that may have stalled.

    Only of engines whose HTTP server is known to close what is idle (uvicorn, after 5 s).
    """
    known = facts.processes.get(engine.pid)
    if known is None or known.product not in _UVICORN:
        return []
    return [
        c
        for c in facts.to_server(*engine.http_pids)
        if c.debt is Debt.NONE
        and not (c.rests or c.upgraded)
        and not (c.closed_by_server or c.closed_by_client)
        and c.last_down_ms is not None
        and c.quiet_ms is not None
        and c.quiet_ms > ENGINE_KEEP_ALIVE_MS
    ]


def has_work(engine: Engine) -> bool:
    """Whether its scheduler says that it has requests, or is seen in one batch at both looks."""
    gauges = engine.gauges
    return bool(engine.batch or gauges.running or gauges.waiting) and not engine.asleep


def gets_bytes(connections: Iterable[Connection]) -> bool:
    """Whether bytes moved towards a client of these connections."""
    return any(c.moving for c in connections)


def answered_by_routers(facts: Facts) -> bool:
    """Whether clients got bytes in the window of which none can have come from an engine."""
    answers = [c for c in facts.connections if c.moving and c.client_pid not in facts.routers]
    return bool(answers) and all(
        c.server_pid in facts.routers and not gets_bytes(facts.from_client(c.server_pid)) for c in answers
    )


def resting(facts: Facts, engine: Engine, age_ms: float | None) -> bool:
    """Whether the engine can be taken not to work on a request of this age.

    Proved by a scheduler that rests at both looks while its numbers are known; else only by an age that no prefill
    reaches unseen.
    """
    if engine.busy:
        return False
    if engine.busy is False and (engine.asleep or engine.gauges.known) and facts.two_looks:
        return True
    return age_ms is not None and age_ms >= LONG_MS


def loop_blocked(facts: Facts, pid: int) -> tuple[int, PythonThread, Frame] | None:
    """The main thread of a Python server whose event loop sits in synchronous code, and the frame; None otherwise."""
    entry = facts.mains.get(pid)
    if entry is None:
        return None
    frame = blocked_in(entry[1])
    return (entry[0], entry[1], frame) if frame is not None else None


def loop_rests(facts: Facts, pid: int) -> bool:
    """Whether the event loop of a server is seen to wait for its sockets: by its stack, or by the kernel's word."""
    entry = facts.mains.get(pid)
    if entry is not None and rests_in_loop(entry[1]):
        return True
    known = facts.processes.get(pid)
    return known is not None and bool(known.threads) and known.threads[0].syscall.startswith("epoll")


def loop_lives(facts: Facts, pid: int) -> bool:
    """Whether the event loop of a server is known to run.

    It rests, or its stack changed between the looks, or an endpoint that asks nothing of other processes answered. Of
    a program that is not Python nothing can be seen, and unread requests would show.
    """
    if any(e.pid == pid and e.purpose == "liveness" and e.status for e in facts.snapshot.endpoints):
        return True
    entry = facts.mains.get(pid)
    if loop_rests(facts, pid) or (entry is not None and entry[1].same_at_second_look is False):
        return True
    known = facts.processes.get(pid)
    return known is not None and not known.python and facts.collected("snapshot_python_stacks", (pid,))


def silent_endpoint(facts: Facts, pid: int) -> Endpoint | None:
    """The liveness endpoint of a server, where the agent's question got no answer; None where it did, or none asked.

    A server that has not even accepted an earlier question is not asked again.
    """
    for endpoint in facts.snapshot.endpoints:
        waited = endpoint.duration_ms >= STUCK_MS / 2 or EARLIER_QUESTION in endpoint.error
        gave_up = not endpoint.status and endpoint.error != "refused" and waited
        if endpoint.pid == pid and endpoint.purpose == "liveness" and gave_up:
            return endpoint
    return None


def sends_both_legs(facts: Facts, router: int) -> bool:
    """Whether this router sends prefill's and decode's request at once and waits for both."""
    known = facts.processes.get(router)
    return known is not None and known.product in _BOTH_LEGS_AT_ONCE


def leg_kind(facts: Facts, connection: Connection) -> str:
    """Kind of engine that an upstream connection leads to: "prefill", "decode", "engine"; empty when unknown.

    An engine on another host is known by what the router says of its workers, or by the router's own flags.
    """
    engine = facts.engine_of(connection.server_pid)
    if engine is not None:
        return engine.kind
    return worker_kinds(facts, connection.client_pid).get(connection.server_address, "")


def worker_kinds(facts: Facts, router: int | None) -> dict[str, str]:
    """Address with port -> "prefill" or "decode", of the workers that a router has, on whatever host."""
    known = facts.processes.get(router or 0)
    argv = known.argv if known is not None else ()
    kinds = {_address(value): flag[2:] for flag, value in pairwise(argv) if flag in {"--prefill", "--decode"}}
    for _, metric in facts.metrics_of(router or 0):
        labels = dict(metric.labels)
        if metric.name == WORKER and labels.get("worker_type") in {"prefill", "decode"}:
            kinds[_address(labels.get("worker", ""))] = labels["worker_type"]
    return kinds


def _address(url: str) -> str:
    return url.rpartition("://")[2].partition("/")[0]
