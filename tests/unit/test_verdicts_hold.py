"""What holds for every verdict: health is never accused, missing evidence never accuses somebody else."""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freezeframe.judge import wire
from freezeframe.judge.model import Outcome, Snapshot, Verdict
from freezeframe.judge.verdicts import conclude
from tests.support.scene import COLLECTORS, Scene
from tests.support.wedged_scenes import WEDGED

Code = Verdict.Code
Status = Outcome.Status
# Less evidence may leave the generic code of the same holder.
GENERIC = {Code.ROUTER_QUEUE: Code.ROUTER_HOLDS}
QUIET = {Code.NOT_STUCK, Code.IDLE, Code.UNDETERMINED}


@pytest.mark.parametrize("name", WEDGED)
def test_wedged_scene(name):
    code, build = WEDGED[name]
    assert build().verdict().code is code


@pytest.mark.parametrize("collector", COLLECTORS)
@pytest.mark.parametrize("name", WEDGED)
@pytest.mark.parametrize("status", [Status.TIMED_OUT, Status.SKIPPED, Status.UNAVAILABLE, Status.PARTIAL])
def test_without_one_collector_nobody_else_is_accused(name, collector, status):
    code, build = WEDGED[name]
    whole = build().verdict()
    verdict = build().lose(collector, status).verdict()
    # A collector that has no part in a proof may be missing; else nothing is claimed.
    assert verdict.code in {code, GENERIC.get(code, code), *QUIET}
    if verdict.code not in QUIET:
        assert set(verdict.holder_pids) == set(whole.holder_pids)
        assert verdict.confidence.value <= whole.confidence.value
    elif collector != "sample_metrics" or code is not Code.ROUTER_NO_WORKERS:
        # Missing metrics leave a router without workers idle; all else must not pass for health.
        assert verdict.code is Code.UNDETERMINED


@pytest.mark.parametrize("name", WEDGED)
def test_every_reference_leads_somewhere(name):
    snapshot = WEDGED[name][1]().conclude()
    for finding in snapshot.findings:
        assert finding.evidence
        assert finding.next_steps
        assert all(_is_step(step) for step in finding.next_steps), finding.next_steps
        for fact in (*finding.evidence, *(e for r in finding.ruled_out for e in r.evidence)):
            for ref in fact.ref.split():
                assert _resolve(snapshot, ref) is not None, ref


@pytest.mark.parametrize("name", WEDGED)
def test_judging_again_says_the_same(name):
    snapshot = WEDGED[name][1]().conclude()
    assert conclude(snapshot) == snapshot
    assert conclude(wire.from_bytes(wire.to_bytes(snapshot), Snapshot)) == snapshot


def _is_step(step):
    """A command with what it is for, a known kind of issue, or how to get what is missing."""
    if step.startswith(("Known kind: ", "Get ", "Start pid ")):
        return True
    command, mark, why = step.partition("  # ")
    # As bash reads it; nothing in it stands for what the reader would have to fill in.
    parsed = subprocess.run(["bash", "-n", "-c", command], capture_output=True, check=False)
    return bool(mark and why) and parsed.returncode == 0 and not re.search(r"\bPID\b|ADDR|…|WORKER", command)


def _resolve(snapshot, ref):
    value = snapshot
    for name, index in re.findall(r"(\w+)(?:\[(\d+)\])?", ref):
        assert name in {field.name for field in fields(value)}
        value = getattr(value, name)
        if index:
            value = value[int(index)]
    return value


young = st.floats(0, 900)
requests = st.lists(st.tuples(st.sampled_from(["young", "streams", "idle", "prefilling"]), young), max_size=12)


@st.composite
def healthy(draw):
    """A system that serves: every request is young, or gets bytes, or waits in a queue that moves."""
    scene = Scene(window_ms=draw(st.sampled_from([0.0, 250.0, 1000.0, 5000.0])))
    router = scene.router()
    paired = draw(st.booleans())
    engines = [scene.engine(kind) for kind in (("prefill", "decode") if paired else ("", ""))]
    running = 0
    for number in range(draw(st.integers(0, 3))):
        client = scene.client(f"client{number}.py") if draw(st.booleans()) else f"10.0.0.{number + 1}"
        entry = router if draw(st.integers(0, 4)) else engines[-1]
        for what, age_ms in draw(requests):
            if what == "idle":
                scene.idle(client, entry, age_ms=age_ms)
                continue
            running += 1
            if what == "streams":
                scene.streams(client, entry)
                if entry == router:
                    scene.streams(router, engines[-1])
                continue
            scene.owed(client, entry, age_ms=age_ms)
            if entry != router:
                continue
            scene.owed(router, engines[0], age_ms=age_ms)
            if paired and what == "young":
                scene.owed(router, engines[1], age_ms=age_ms)
    # Health checks, scrapes, idle pools.
    scene.owed(router, engines[0], draw(st.integers(0, 1)), age_ms=draw(st.floats(0, 4_900)))
    scene.idle("10.0.9.9", engines[0], draw(st.integers(0, 2)), age_ms=draw(st.floats(0, 9_000)))
    scene.idle(router, engines[-1], draw(st.integers(0, 5)), age_ms=draw(st.floats(0, 4_900)))
    for engine in engines:
        if draw(st.booleans()):
            scene.gauges(engine, running=running, waiting=draw(st.integers(0, 3)), tokens=draw(st.integers(0, 900)))
        busy = draw(st.booleans())
        scene.state(
            engine.scheduler, draw(st.sampled_from("RS")), cpu_ms=scene.meta.window_ms * (0.99 if busy else 0.3)
        )
        if draw(st.booleans()):
            scene.change(engine.http, age_ms=draw(st.floats(0, 5_000)))
    return scene


@settings(max_examples=300, deadline=None)
@given(healthy(), st.sets(st.sampled_from(COLLECTORS), max_size=3))
def test_health_is_never_accused(scene, missing):
    for collector in missing:
        scene.lose(collector)
    snapshot = scene.conclude()
    assert {finding.code for finding in snapshot.findings} <= QUIET
    assert snapshot.verdict.holder_pids == ()
    assert not any(hop.holds for hop in snapshot.hops)
    assert not any(a.stray for a in snapshot.verdict.attribution)
