"""HOST_STARVED: the host gives the path no CPU, or no memory.

Each proof needs stuck requests, two looks, and a process of the path that shows the lack itself; for a quota, answers
that have begun and are quiet count as stuck while their engine has work, and so do connections to an HTTP process that
is itself held back, since one that rests is not runnable:
- CPU: the main thread of a process with stuck requests was runnable at both looks and got less than a tenth of the
  window, while its cgroup's throttling in the window is high, or the host's CPU pressure is and the thread itself was
  ready to run without a CPU for most of the window: one that wakes often and rests in between needs no more. A quota
  holds back all of its cgroup, so all its processes of the path are named;
- memory: a process of the path was killed for memory in this window or is named by the kernel's log after the oldest
  stuck request began, or all tasks stalled for memory for half of the window.
MEDIUM: starvation slows, and another cause may sit behind it. Where a process that has to do with what hangs is stopped
or has ended, a lack of CPU is no finding: a host is busy while others wait for it. It has to do with it where a stuck
request or a quiet answer leads to it or its engine, where it is the other half of an engine that has stuck requests,
and where it ended in the window, since then its connections may be gone; a zombie that was left over has not.

A busy host, a high load, and pressure while requests move are no proof. A full disk alone is none either: it is said
as evidence only.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Connection, Debt, Facts, Place
from freezeframe.judge.correlate.thresholds import DELAYED, STUCK_MS
from freezeframe.judge.model import Confidence, Evidence, Host, Process, Throttle, Verdict
from freezeframe.judge.verdicts._processes import engine_with, hop_of, path_processes, waiting_for
from freezeframe.judge.verdicts._proof import gets_bytes, has_work, silent_endpoint, starved, stuck
from freezeframe.judge.verdicts._steps import quota, step
from freezeframe.judge.verdicts._words import count, evidence, process, process_ref

Level = Confidence.Level
# cgroups that are named in the steps.
_GROUPS = 3

# Share of the window in which some task waited for a CPU, percent; share of the periods in which a cgroup was held
# back; share of the window in which all tasks waited for memory, percent.
_CPU_SOME, _THROTTLED, _MEMORY_FULL = 80.0, 0.8, 50.0
# Stopped; ended.
_STILL = frozenset("TZX")
# Engines that work on a request together.
_PAIR = frozenset({"prefill", "decode"})
# Below this a file system is full, bytes.
_FULL = 1 << 20


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """At most one verdict per host."""
    if not facts.two_looks:
        return ()
    return tuple(v for place in facts.places.values() if place.host and (v := _host(facts, place, place.host)))


def _host(facts: Facts, place: Place, host: Host) -> Verdict | None:
    on_path = [p for p in path_processes(facts) if p.role is not Process.Role.CLIENT and facts.place(p.pid) is place]
    hungry = [p for p in on_path if starved(facts, p)]
    held = [
        p
        for p in hungry
        if (waiting_for(facts, p) and _cpu(facts, host, p))
        or ((_begun(facts, p) or _serves(facts, p)) and _quota(place, host, p))
    ]
    # What a process holds that is stopped or has ended waits for no CPU.
    if held and not any(_still(p) and _concerned(facts, p) for p in on_path):
        proved = tuple(e for p in held for e in (_runnable(facts, p), *_mute(facts, p), *_cpu(facts, host, p)))
        # A quota holds back all of its cgroup: who of it was runnable at both looks is chance.
        groups = {t.cgroup for p in held for t in host.throttles if p.pid in t.pids and _throttled(t)}
        of = [p for p in on_path if p in held or any(p.pid in t.pids for t in host.throttles if t.cgroup in groups)]
        return _verdict(facts, place, host, "CPU", of, proved)
    killed = _oom(facts, place, host, on_path) if facts.stuck and on_path else ()
    return _verdict(facts, place, host, "memory", on_path, killed) if killed else None


def _still(p: Process) -> bool:
    return p.frozen or p.exited or p.state in _STILL


def _concerned(facts: Facts, p: Process) -> bool:
    """Whether what hangs may hang on this process, which is stopped or has ended."""
    if p.exited or waiting_for(facts, p) or _begun(facts, p):
        return True
    engine = engine_with(facts, p)
    others = (e for e in facts.engines if {e.kind, engine.kind if engine else p.disaggregation} == _PAIR)
    if any(stuck(facts.to_server(*e.http_pids)) for e in others):
        return True
    # No request is known to be stuck: every connection may be what hangs.
    served = facts.to_server(*(engine.http_pids if engine else (p.pid,)))
    return not facts.stuck and any(not c.closed_by_client for c in served)


def _cpu(facts: Facts, host: Host, p: Process) -> tuple[Evidence, ...]:
    place = facts.place(p.pid)
    delay_ms = p.threads[0].run_delay_ms_delta
    if delay_ms is not None and delay_ms < DELAYED * facts.window_ms:
        return _quota(place, host, p)
    found = [
        evidence(f"some task waited for a CPU for {pressure.some_window:.0f} % of the window", place.ref("host"))
        for pressure in host.pressure
        if pressure.resource == "cpu" and not pressure.cgroup and (pressure.some_window or 0) >= _CPU_SOME
    ]
    return (*found, *_quota(place, host, p))


def _quota(place: Place, host: Host, p: Process) -> tuple[Evidence, ...]:
    found = []
    for index, throttle in enumerate(host.throttles):
        if p.pid in throttle.pids and (share := _throttled(throttle)):
            text = f"cgroup {throttle.cgroup} was held back in {share:.0%} of its periods"
            found.append(evidence(text, place.ref(f"host.throttles[{index}]")))
    return tuple(found)


def _throttled(throttle: Throttle) -> float:
    """Share of the periods in which this cgroup was held back; 0 when that is too few to explain anything."""
    share = (throttle.throttled_periods_delta or 0) / (throttle.periods_delta or 1)
    return share if share >= _THROTTLED else 0.0


def _begun(facts: Facts, p: Process) -> list[Connection]:
    """Answers of its engine that have begun and are quiet while the engine has work: a stream, not an idle connection.

    Which of the connections are streams is not known, so this counts for a process that is starved only.
    """
    engine = engine_with(facts, p)
    if engine is None or not has_work(engine):
        return []
    served = facts.to_server(*engine.http_pids)
    open_ones = [c for c in served if c.debt is Debt.NONE and not (c.closed_by_client or c.closed_by_server)]
    return [c for c in open_ones if not c.moving and c.quiet_ms is not None and c.quiet_ms >= STUCK_MS]


def _serves(facts: Facts, p: Process) -> bool:
    """Whether others are connected to this HTTP process: one that rests is not runnable, so something is on these."""
    served = facts.to_server(p.pid)
    open_ones = any(not c.closed_by_client for c in served)
    return facts.engine_of(p.pid) is not None and open_ones and not gets_bytes(served)


def _mute(facts: Facts, p: Process) -> tuple[Evidence, ...]:
    silent = silent_endpoint(facts, p.pid)
    if silent is None:
        return ()
    index = facts.snapshot.endpoints.index(silent)
    return (evidence(f"{silent.path}: {silent.error or 'no answer'}", f"endpoints[{index}]"),)


def _oom(facts: Facts, place: Place, host: Host, on_path: list[Process]) -> tuple[Evidence, ...]:
    found = []
    pids = {p.pid for p in on_path}
    since = facts.oldest_stuck_ms or 0
    for index, event in enumerate(facts.snapshot.kernel_events):
        if event.kind == "oom" and event.pid in pids and event.age_ms <= since:
            found.append(evidence(f"the kernel killed pid {event.pid} for memory", f"kernel_events[{index}]"))
    for pressure in host.pressure:
        stalled = pressure.resource == "memory" and pressure.full_avg10 >= _MEMORY_FULL
        if stalled and (pressure.some_window or 0) >= _MEMORY_FULL:
            found.append(
                evidence(f"all tasks waited for memory for {pressure.full_avg10:.0f} % of 10 s", place.ref("host"))
            )
    return tuple(found)


def _runnable(facts: Facts, p: Process) -> Evidence:
    got = p.threads[0].cpu_ms_delta
    text = f"{process(facts, p.pid)} was runnable at both looks and got {got:.0f} ms of {facts.window_ms:.0f}"
    return evidence(text, *process_ref(facts, p.pid))


def _verdict(
    facts: Facts, place: Place, host: Host, what: str, of: list[Process], proved: tuple[Evidence, ...]
) -> Verdict:
    full = tuple(
        evidence(f"{fs.mount} is full ({fs.purpose})", place.ref(f"host.filesystems[{index}]"))
        for index, fs in enumerate(host.filesystems)
        if fs.available_bytes < _FULL <= fs.size_bytes
    )
    groups = sorted({p.cgroup for p in of if p.cgroup not in {"", "/"}})[:_GROUPS]
    waiting = max((len(waiting_for(facts, p)) + len(_begun(facts, p)) for p in of), default=0)
    open_to = sum(not c.closed_by_client for p in of for c in facts.to_server(p.pid))
    known = waiting or facts.stuck
    behind = f"{count(known, 'request')} wait" if known else f"{count(open_to, 'connection')} of others are open to it"
    names = ", ".join(dict.fromkeys(hop_of(facts, p) for p in of))
    return Verdict(
        code=Verdict.Code.HOST_STARVED,
        hop=hop_of(facts, of[0]) if len(of) == 1 else "",
        holder_pids=tuple(p.pid for p in of) if what == "CPU" else (),
        summary=f"The host{f' {place.name}' if place.name else ''} lacks {what} for {names}; {behind}.",
        confidence=Level.MEDIUM,
        evidence=(*proved, *full),
        next_steps=(
            step("top -b -H -n 1 | head -40", "who takes the CPU"),
            step("cat /proc/pressure/cpu /proc/pressure/memory /proc/pressure/io", "what is short"),
            *(
                quota(each, "its quota and throttling; once it is raised look again: another cause may sit behind it")
                for each in groups
            ),
        ),
        explains=waiting or facts.stuck,
    )
