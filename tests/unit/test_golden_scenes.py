"""Scenes recorded from real routers and engine stand-ins (tests/support/record_scene.py), judged again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from freezeframe.judge import wire
from freezeframe.judge.model import Confidence, Outcome, Process, Snapshot, Verdict
from freezeframe.judge.verdicts import conclude

SCENES = Path(__file__).parent.parent / "golden" / "scenes"
Code = Verdict.Code
Role = Process.Role

# Name -> code, and the holder's role and disaggregation; None: nobody holds. DECODE: all of that engine.
DECODE = ((Role.ENGINE_HTTP, "decode"), (Role.SCHEDULER, "decode"), (Role.DETOKENIZER, "decode"))
EXPECTED: dict[str, tuple[Verdict.Code, object]] = {
    "none": (Code.NOT_STUCK, None),
    "none-one-look": (Code.NOT_STUCK, None),
    "none-regular": (Code.NOT_STUCK, None),
    "burst": (Code.NOT_STUCK, None),
    "slow-prefill": (Code.NOT_STUCK, None),
    "idle": (Code.IDLE, None),
    "idle-one-look": (Code.IDLE, None),
    "idle-spinning": (Code.IDLE, None),
    "router-dual-leg": (Code.ROUTER_DUAL_LEG, (Role.ROUTER, "")),
    "router-dual-leg-settled": (Code.ROUTER_DUAL_LEG, (Role.ROUTER, "")),
    "router-dual-leg-one-look": (Code.ROUTER_DUAL_LEG, (Role.ROUTER, "")),
    "stray-client": (Code.ROUTER_DUAL_LEG, (Role.ROUTER, "")),
    "stray-client-regular": (Code.ENGINE_HANDOFF, (Role.ENGINE_HTTP, "")),
    "engine-silent": (Code.ENGINE_HANDOFF, (Role.ENGINE_HTTP, "decode")),
    "engine-silent-regular": (Code.ENGINE_HANDOFF, (Role.ENGINE_HTTP, "")),
    "engine-loop-blocked": (Code.ENGINE_HTTP_BLOCKED, (Role.ENGINE_HTTP, "decode")),
    "engine-loop-blocked-regular": (Code.ENGINE_HTTP_BLOCKED, (Role.ENGINE_HTTP, "")),
    "engine-loop-locked": (Code.ENGINE_HTTP_BLOCKED, (Role.ENGINE_HTTP, "decode")),
    "engine-not-accepting": (Code.ENGINE_NOT_ACCEPTING, (Role.ENGINE_HTTP, "decode")),
    "scheduler-queue": (Code.SCHEDULER_QUEUE, (Role.SCHEDULER, "prefill")),
    "router-stopped": (Code.PROCESS_STOPPED, (Role.ROUTER, "")),
    "scheduler-stopped": (Code.PROCESS_STOPPED, (Role.SCHEDULER, "decode")),
    "scheduler-dead": (Code.PROCESS_DEAD, (Role.SCHEDULER, "decode")),
    "engine-dead": (Code.ROUTER_DUAL_LEG, (Role.ROUTER, "")),
    "engine-frozen": (Code.PROCESS_STOPPED, DECODE),
    "engine-starved": (Code.HOST_STARVED, DECODE),
    "engine-in-D": (Code.PROCESS_UNINTERRUPTIBLE, (Role.ENGINE_HTTP, "decode")),
    "stream-stalls-after-5-tokens": (Code.DECODE_STALLED, (Role.SCHEDULER, "decode")),
    "router-out-of-fds": (Code.ROUTER_NOT_ACCEPTING, (Role.ROUTER, "")),
    "breaker-open": (Code.ROUTER_NO_WORKERS, (Role.ROUTER, "")),
    "client-not-reading": (Code.CLIENT_NOT_READING, (Role.CLIENT, "")),
    "client-gone-midstream": (Code.ZOMBIE_UPSTREAM, (Role.ROUTER, "")),
    "client-pool-of-4": (Code.ENGINE_HANDOFF, (Role.ENGINE_HTTP, "decode")),
    "slow-stream": (Code.NOT_STUCK, None),
    "websockets": (Code.UNDETERMINED, None),
    "none-smg": (Code.NOT_STUCK, None),
    "router-dual-leg-smg": (Code.ROUTER_NO_WORKERS, (Role.ROUTER, "")),
    "prefill-silent-smg": (Code.ENGINE_HANDOFF, (Role.ENGINE_HTTP, "prefill")),
    "router-limit-smg": (Code.ROUTER_QUEUE, (Role.ROUTER, "")),
    "engine-dead-smg": (Code.ROUTER_NO_WORKERS, (Role.ROUTER, "")),
}
# Less evidence may leave the generic code of the same holder.
GENERIC = {(Code.ROUTER_QUEUE, Code.ROUTER_HOLDS)}
QUIET = {Code.NOT_STUCK, Code.IDLE, Code.UNDETERMINED}


def scene(name: str) -> Snapshot:
    return wire.from_bytes((SCENES / f"{name}.binpb").read_bytes(), Snapshot)


def holder(snapshot: Snapshot, verdict: Verdict) -> object:
    found = tuple((p.role, p.disaggregation) for p in snapshot.processes if p.pid in verdict.holder_pids)
    return found if len(found) > 1 else found[0] if found else None


def test_every_recorded_scene_is_judged():
    assert {path.stem for path in SCENES.glob("*.binpb")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_code_and_holder(name):
    snapshot = conclude(scene(name))
    assert (snapshot.verdict.code, holder(snapshot, snapshot.verdict)) == EXPECTED[name], snapshot.verdict.summary


def test_the_story():
    snapshot = conclude(scene("stray-client"))
    verdict = snapshot.verdict
    clients = {(a.client, a.stray, a.requests_in_flight, a.talks_to) for a in verdict.attribution}
    assert clients == {("harness.py", False, 6, ("router",)), ("stray_client.py", True, 1, ("decode",))}
    assert {"decode", "scheduler of decode"} <= {r.hop for r in verdict.ruled_out}
    assert verdict.confidence is Confidence.Level.HIGH
    ids = [r.request_id for r in snapshot.requests if r.peer_pid == verdict.attribution[0].pid]
    assert len(set(ids)) == 6
    assert all(ids)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize(
    "field", ["sockets", "metrics", "python_threads", "log_findings", "log_requests", "endpoints", "host"]
)
def test_without_one_kind_of_record_nobody_else_is_accused(name, field):
    by = {
        "sockets": "snapshot_sockets",
        "python_threads": "snapshot_python_stacks",
        "host": "snapshot_host",
        "metrics": "sample_metrics",
        "endpoints": "sample_metrics",
        "log_findings": "read_logs",
        "log_requests": "read_logs",
    }
    whole = scene(name)
    lost = Outcome(collector=by[field], status=Outcome.Status.TIMED_OUT)
    outcomes = (*(o for o in whole.outcomes if o.collector != lost.collector), lost)
    verdict = conclude(replace(whole, outcomes=outcomes, **{field: None if field == "host" else ()})).verdict
    assert verdict.code in {EXPECTED[name][0], *QUIET} or (EXPECTED[name][0], verdict.code) in GENERIC
    if verdict.code not in QUIET:
        assert holder(whole, verdict) == EXPECTED[name][1]
