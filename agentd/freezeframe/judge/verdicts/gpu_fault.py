"""GPU_FAULT: a GPU of an engine that holds requests does no more work, and the kernel or NVML says so.

Each proof needs stuck requests at the engine:
- an Xid or SXid after which the device works no more until somebody acts, that came while the engine ran, and names a
  process of the engine or a GPU on which one has memory: HIGH; on a host with one engine, of any GPU: MEDIUM;
- NVML says that a GPU is lost, on a host with one engine: MEDIUM, as a lost GPU no longer tells whose it was;
- NVML gives no answer at all: MEDIUM, as everything that asks the driver then hangs, the engine too, or for another
  reason.

Lookalikes: an Xid that blames the program (13, 31, 43), one from before the engine's start, one of somebody else's
GPU; a GPU that is slow to answer, or does not know a question; an Xid while nothing is stuck.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Connection, Engine, Facts
from freezeframe.judge.correlate.hops import scheduler_hop
from freezeframe.judge.model import Confidence, Evidence, KernelEvent, Outcome, Verdict
from freezeframe.judge.verdicts._proof import stuck
from freezeframe.judge.verdicts._steps import step
from freezeframe.judge.verdicts._words import count, evidence, seconds, socket_refs

Level = Confidence.Level
# NVML's words for a GPU that answers no more.
_LOST = ("GPU is lost", "Reset Required")
_DRIVER = "snapshot_gpus"


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """At most one verdict per engine."""
    found = []
    for engine in facts.engines:
        waiting = stuck(facts.to_server(*engine.http_pids))
        proved = (_xids(facts, engine) or _lost(facts, engine) or _silent(facts, engine)) if waiting else ()
        if proved:
            found.append(_verdict(engine, waiting, proved))
    return tuple(found)


def _xids(facts: Facts, engine: Engine) -> tuple[tuple[Evidence, Level], ...]:
    place = facts.place(engine.pid)
    # Other hosts have the same bus addresses.
    gpus = (facts.snapshot.gpus[index] for index in place.gpus)
    own = {_slot(gpu.bus_id) for gpu in gpus if {p.pid for p in gpu.processes} & set(engine.pids)}
    started = max((facts.processes[pid].age_ms or 0.0 for pid in engine.pids if pid in facts.processes), default=0.0)
    found = []
    for index in place.kernel_events:
        event = facts.snapshot.kernel_events[index]
        if not event.fatal or event.age_ms > started:
            continue
        theirs = event.pid in engine.pids or _slot(event.device) in own
        # Where it is known whose GPU it was, nobody else is blamed.
        if theirs or (_is_alone(facts, engine) and not own):
            text = f"the kernel reported {_event(event)} {seconds(event.age_ms)} ago"
            found.append((evidence(text, f"kernel_events[{index}]"), Level.HIGH if theirs else Level.MEDIUM))
    return tuple(found)


def _is_alone(facts: Facts, engine: Engine) -> bool:
    """Whether its host has no other engine."""
    place = facts.place(engine.pid)
    return sum(facts.place(each.pid) is place for each in facts.engines) == 1


def _lost(facts: Facts, engine: Engine) -> tuple[tuple[Evidence, Level], ...]:
    if not _is_alone(facts, engine):
        return ()
    gpus = facts.snapshot.gpus
    return tuple(
        (evidence(f"GPU {gpus[index].index}: {gpus[index].error}", f"gpus[{index}]"), Level.MEDIUM)
        for index in facts.place(engine.pid).gpus
        if any(words in gpus[index].error for words in _LOST)
    )


def _silent(facts: Facts, engine: Engine) -> tuple[tuple[Evidence, Level], ...]:
    place = facts.place(engine.pid)
    outcome = place.outcomes.get(_DRIVER)
    if outcome is None or outcome.status is not Outcome.Status.TIMED_OUT:
        return ()
    ref = f"outcomes[{place.first_outcome + list(place.outcomes).index(_DRIVER)}]"
    return ((evidence(f"the GPU driver gives no answer: {outcome.detail}", ref), Level.MEDIUM),)


def _event(event: KernelEvent) -> str:
    name = "SXid" if event.kind == "sxid" else "Xid"
    return f"{name} {event.code} of {event.device}" + (f", {event.meaning}" if event.meaning else "")


def _slot(address: str) -> str:
    """What PCI addresses of the kernel's log ("0000:04:00") and of NVML ("00000000:04:00.0") have in common."""
    parts = address.lower().partition(".")[0].split(":")
    return ":".join((parts[0].lstrip("0"), *parts[1:])) if address else ""


def _verdict(engine: Engine, waiting: list[Connection], proved: tuple[tuple[Evidence, Level], ...]) -> Verdict:
    holders = engine.scheduler_pids or engine.http_pids
    actions = tuple(dict.fromkeys(each.text for each, _ in proved))
    return Verdict(
        code=Verdict.Code.GPU_FAULT,
        hop=scheduler_hop(engine.kind),
        holder_pids=holders,
        summary=f"A GPU of the {engine.kind} engine has failed; {count(len(waiting), 'request')} wait: {actions[0]}.",
        confidence=max((level for _, level in proved), key=lambda level: level.value),
        evidence=(
            *(each for each, _ in proved),
            evidence(f"{count(len(waiting), 'request')} wait at the engine", *socket_refs(waiting)),
        ),
        next_steps=(
            step("freezeframe show FILE kernel gpus", "what happened, and what the vendor says to do"),
            step(
                "nvidia-smi -q -d ECC,PERFORMANCE,ROW_REMAPPER",
                "state of the GPUs; what was in flight on a failed one is lost",
            ),
        ),
        explains=len(waiting),
    )
