"""PROXY_HOLDS: a proxy before the router has read requests and passed them on to nobody.

Proof: that of ROUTER_HOLDS, for a process that others connect to and that connects to a router or an engine: all its
upstream connections together carry fewer requests than it owes; it can run and its sockets were all seen. A proxy that
may carry several requests on one connection is left alone. HIGH when nothing at all is open upstream; else MEDIUM: a
proxy answers some requests itself.

Lookalikes: a keep-alive pool; a proxy whose workers share connections, which are one program here but several
processes: what any of them has upstream counts; Ray Serve's proxy, which has one gRPC connection for each replica.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.model import Confidence, Process, Verdict
from freezeframe.judge.verdicts._held import held, held_evidence
from freezeframe.judge.verdicts._proof import runs, sockets_seen
from freezeframe.judge.verdicts._steps import log, step
from freezeframe.judge.verdicts._words import count, oldest, seconds, who

Level = Confidence.Level
# All requests to one replica go over one connection.
_MULTIPLEX = frozenset({"ray-serve"})


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per proxy."""
    proxies = [p for p in facts.processes.values() if p.role is Process.Role.PROXY]
    return tuple(v for proxy in proxies if (v := _proxy(facts, proxy, proxies)) is not None)


def _proxy(facts: Facts, proxy: Process, proxies: list[Process]) -> Verdict | None:
    if proxy.product in _MULTIPLEX:
        return None
    workers = [p.pid for p in proxies if p.exe == proxy.exe and p.pid != proxy.pid]
    everyone = (proxy.pid, *workers)
    if facts.from_client(*workers) or not runs(facts, *everyone) or not sockets_seen(facts, *everyone):
        return None
    found = held(facts, proxy.pid)
    if found is None:
        return None
    name = proxy.product or "proxy"
    return Verdict(
        code=Verdict.Code.PROXY_HOLDS,
        hop="proxy",
        holder_pids=(proxy.pid,),
        summary=f"The proxy {name} (pid {proxy.pid}) holds {count(found.count, 'request')} of "
        f"{who(facts, found.down)}: read, and not passed on, oldest {seconds(oldest(found.down))}.",
        confidence=Level.HIGH if found.sure else Level.MEDIUM,
        evidence=tuple(held_evidence(facts, found)),
        next_steps=(
            log(facts, proxy.pid, "its errors: a limit of upstream connections, an upstream that it calls down"),
            step(f"ss -tanp | grep -w pid={proxy.pid}", "its connections upstream"),
        ),
        explains=found.count,
    )
