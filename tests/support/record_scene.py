"""Record what the collectors see of a running bed: ``python -m tests.support.record_scene [NAME...]``.

Each scene is one wedge of a real bed, looked at by the real collectors in this process, kept before it is judged:
the wire bytes of a Snapshot under tests/golden/scenes/NAME.binpb. Needs root and the bed's extra.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import cast

from freezeframe.agentd.capture import CaptureSpec
from freezeframe.agentd.collectors import COLLECTORS
from freezeframe.agentd.collectors.contract import Collector, SkippedError, UnavailableError
from freezeframe.agentd.engine import Engine
from freezeframe.agentd.host import Host
from freezeframe.agentd.jobs import Job
from freezeframe.agentd.pidfds import Held
from freezeframe.judge import SCHEMA, wire
from freezeframe.judge.correlate.roles import serving_processes
from freezeframe.judge.model import Meta, Metric, Outcome, Process, Snapshot, Socket
from freezeframe.judge.verdicts import conclude
from tests.bed.bed import Bed

ROOT = Path(__file__).parent.parent.parent
SCENES = ROOT / "tests" / "golden" / "scenes"
# What the rules read, of some forty that engines and routers export.
METRICS = (
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:num_prefill_bootstrap_queue_reqs",
    "sglang:num_decode_transfer_queue_reqs",
    "sglang:generation_tokens_total",
    "sglang:realtime_tokens_total",
    "sglang:http_requests_active",
    "router_worker_healthy",
    "smg_admission_queue_depth",
    "smg_worker_health",
    "smg_worker_cb_state",
    "smg_worker_retries_exhausted_total",
)
Status = Outcome.Status


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One scene: a wedge, how the bed is built, and the time between looks."""

    wedge: str
    router: str = "sglang-router"
    regular: bool = False
    stray: bool = False
    # Until no healthy state looks like it.
    settled: bool = False
    window_ms: float = 1000.0
    # Time that the wedge has stood before the first look, seconds.
    wait_s: float = 1.5
    clients: int = 6


RECORDINGS: dict[str, Recording] = {
    "none": Recording(wedge="none"),
    "none-one-look": Recording(wedge="none", window_ms=0.0),
    "none-regular": Recording(wedge="none", regular=True),
    "idle": Recording(wedge="idle"),
    "idle-one-look": Recording(wedge="idle", window_ms=0.0),
    "idle-spinning": Recording(wedge="idle-spinning"),
    "burst": Recording(wedge="burst"),
    "slow-prefill": Recording(wedge="slow-prefill", wait_s=0.0),
    "router-dual-leg": Recording(wedge="router-dual-leg"),
    "router-dual-leg-settled": Recording(wedge="router-dual-leg", wait_s=6.0),
    "router-dual-leg-one-look": Recording(wedge="router-dual-leg", window_ms=0.0),
    "stray-client": Recording(wedge="stray-client", stray=True),
    "stray-client-regular": Recording(wedge="stray-client", stray=True, regular=True, wait_s=10.5),
    "engine-silent": Recording(wedge="engine-silent"),
    "engine-silent-regular": Recording(wedge="engine-silent", regular=True),
    "engine-loop-blocked": Recording(wedge="engine-loop-blocked"),
    "engine-loop-blocked-regular": Recording(wedge="engine-loop-blocked", regular=True),
    "engine-loop-locked": Recording(wedge="engine-loop-locked"),
    "engine-not-accepting": Recording(wedge="engine-not-accepting"),
    "scheduler-queue": Recording(wedge="scheduler-queue"),
    "router-stopped": Recording(wedge="router-stopped"),
    "scheduler-stopped": Recording(wedge="scheduler-stopped"),
    "scheduler-dead": Recording(wedge="scheduler-dead"),
    "engine-dead": Recording(wedge="engine-dead"),
    "engine-frozen": Recording(wedge="engine-frozen"),
    "engine-starved": Recording(wedge="engine-starved", settled=True),
    "engine-in-D": Recording(wedge="engine-in-D"),
    "stream-stalls-after-5-tokens": Recording(wedge="stream-stalls-after-5-tokens", settled=True),
    "router-out-of-fds": Recording(wedge="router-out-of-fds", settled=True),
    "breaker-open": Recording(wedge="breaker-open"),
    "client-not-reading": Recording(wedge="client-not-reading"),
    "client-gone-midstream": Recording(wedge="client-gone-midstream"),
    "client-pool-of-4": Recording(wedge="client-pool-of-4"),
    "slow-stream": Recording(wedge="slow-stream"),
    "websockets": Recording(wedge="websockets"),
    "none-smg": Recording(wedge="none", router="smg"),
    "router-dual-leg-smg": Recording(wedge="router-dual-leg", router="smg"),
    "prefill-silent-smg": Recording(wedge="prefill-silent", router="smg"),
    "router-limit-smg": Recording(wedge="router-limit", router="smg"),
    "engine-dead-smg": Recording(wedge="engine-dead", router="smg"),
}


class InThisProcess:
    """Runs collectors in threads of this process, as `agentd.workers` runs them in workers."""

    async def run(
        self,
        collector: Collector,
        job: Job,
        *,
        on_part: Callable[[Snapshot], None],
        on_doing: Callable[[str, int], None],
    ) -> Outcome:
        report = _Report(on_part, on_doing, asyncio.get_running_loop())
        began = time.monotonic()
        status, detail, hint = Status.OK, "", ""
        try:
            await asyncio.to_thread(collector.collect, job, Host(), report)
        except SkippedError as error:
            status, detail = Status.SKIPPED, str(error)
        except UnavailableError as error:
            status, detail, hint = Status.UNAVAILABLE, str(error), error.hint
        if status is Status.OK and report.missing:
            status, detail = Status.PARTIAL, "; ".join(report.missing)
        return Outcome(
            collector=collector.name,
            status=status,
            detail=detail,
            hint=hint,
            duration_ms=(time.monotonic() - began) * 1000.0,
            pids_missed=tuple(report.missed_pids),
        )


class _Report:
    def __init__(
        self,
        on_part: Callable[[Snapshot], None],
        on_doing: Callable[[str, int], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._on_part, self._on_doing, self._loop = on_part, on_doing, loop
        self._done = 0
        self.missing: list[str] = []
        self.missed_pids: list[int] = []

    def doing(self, what: str) -> None:
        self._loop.call_soon_threadsafe(self._on_doing, what, self._done)

    def part(self, part: Snapshot) -> None:
        self._loop.call_soon_threadsafe(self._on_part, part)

    def done(self, pid: int) -> None:
        self._done += 1
        self.doing(f"done with pid {pid}")

    def missed(self, pid: int, why: str) -> None:
        self.missed_pids.append(pid)
        self.missing.append(f"pid {pid}: {why}")

    def partial(self, detail: str, hint: str = "") -> None:
        self.missing.append(detail)


def record(bed: Bed, *, window_ms: float, deadline_ms: float = 15_000.0) -> Snapshot:
    """Capture a bed, and nothing else of this host, unjudged."""
    pids = set(bed.pids.all())

    def serving(
        processes: Sequence[Process], sockets: Sequence[Socket], metrics: Sequence[Metric]
    ) -> tuple[Process, ...]:
        return tuple(p for p in serving_processes(processes, sockets, metrics=metrics) if p.pid in pids)

    engine = Engine(
        workers=InThisProcess(),
        collectors=COLLECTORS,
        serving=serving,
        conclude=lambda snapshot: snapshot,
        hold=Held,
        identity=Meta(host="bed", agent_version="0", schema=SCHEMA),
    )
    spec = CaptureSpec(window_ms=window_ms, deadline_ms=deadline_ms)
    return asyncio.run(engine.capture(spec, lambda _step: None))


def slim(snapshot: Snapshot, bed: Bed) -> Snapshot:
    """Only what rules read, and no paths of this machine: a scene is kept in the repository."""
    kept = replace(
        snapshot,
        metrics=tuple(metric for metric in snapshot.metrics if metric.name in METRICS),
        sockets=tuple(s for s in snapshot.sockets if s.family == "tcp" and s.state != "TIME-WAIT"),
        processes=tuple(_slim_process(process) for process in snapshot.processes),
        python_threads=tuple(thread for thread in snapshot.python_threads if thread.name == "MainThread"),
        asyncio_tasks=(),
        native_threads=(),
        kernel_events=(),
        log_sources=(),
    )
    places = {
        str(bed.run_dir): "/run/bed",
        str(ROOT): "/opt/bed",
        sys.prefix: "/opt/bed/.venv",
        sys.base_prefix: "/usr",
    }
    return cast("Snapshot", _elsewhere(kept, places))


def _slim_process(process: Process) -> Process:
    main = tuple(replace(t, kernel_stack=(), syscall_arguments=()) for t in process.threads[:1])
    cgroup = "/frozen" if process.frozen else ""
    return replace(process, threads=main, argv=process.argv[:3], cgroup=cgroup, unit="")


def _elsewhere(value: object, places: dict[str, str]) -> object:
    if isinstance(value, str):
        for here, there in places.items():
            value = value.replace(here, there)
        return value
    if isinstance(value, tuple):
        return tuple(_elsewhere(item, places) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _elsewhere(getattr(value, f.name), places) for f in fields(value)})
    return value


def main(names: Iterable[str]) -> None:
    SCENES.mkdir(parents=True, exist_ok=True)
    for name in names:
        recording = RECORDINGS[name]
        with Bed.start(
            recording.wedge,
            clients=recording.clients,
            router=recording.router,
            stray=recording.stray,
            regular=recording.regular,
        ) as bed:
            bed.wait_wedged(settled=recording.settled)
            time.sleep(recording.wait_s)  # the requests of a wedge have an age
            snapshot = slim(record(bed, window_ms=recording.window_ms), bed)
            path = SCENES / f"{name}.binpb"
            path.write_bytes(wire.to_bytes(snapshot))
            verdict = conclude(snapshot).verdict
            print(f"{name}: {path.stat().st_size} bytes; {bed.pids}\n  {verdict and verdict.summary}")


if __name__ == "__main__":
    main(sys.argv[1:] or RECORDINGS)
