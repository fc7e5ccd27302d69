"""Faults of an engine: of its HTTP process, its scheduler, or all its processes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from tests.bed import processes
from tests.bed.cgroups import Cgroup
from tests.bed.disk import dead_file
from tests.bed.wedges.base import Wedge, all_wait, completed_by_client

if TYPE_CHECKING:
    from tests.bed.bed import Bed

# An engine's HTTP server keeps an idle connection for 5 s; one that is quiet for twice that carries an answer.
STALLED_S = 10.5
TOKENS_BEFORE_THE_STALL = 5
BUSY = ["/bin/sh", "-c", "while :; do :; done"]


class EngineFault(Wedge):
    """A fault of one engine's HTTP process: the decode engine's, or the first one's in a regular bed."""

    fault: str

    def engine_name(self, bed: Bed) -> str | None:
        return bed.chosen_engine or ("engine0" if bed.regular else "decode")

    def enter(self, bed: Bed) -> None:
        self.engine(bed).http(do="set", fault=self.fault)
        bed.client("harness", do="run")


class EngineSilent(EngineFault):
    name = "engine-silent"
    about = "the engine's HTTP process reads requests and hands them to nobody"
    fault = "silent"

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return bool(self.engine(bed).http(do="status")["silenced"] == bed.clients)


class DecodeSilent(EngineSilent):
    name = "decode-silent"
    about = "the decode engine reads requests and hands them to nobody; prefill waits for it"
    disaggregated_only = True

    def engine_name(self, bed: Bed) -> str | None:
        return "decode"


class PrefillSilent(EngineSilent):
    name = "prefill-silent"
    about = "the prefill engine reads requests and hands them to nobody; decode waits for it"
    disaggregated_only = True

    def engine_name(self, bed: Bed) -> str | None:
        return "prefill"


class EngineLoopBlocked(EngineFault):
    name = "engine-loop-blocked"
    about = "the engine's event loop sleeps in synchronous code"
    fault = "block-sleep"

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return bool(self.engine(bed).http(do="status")["blocked"])


class EngineLoopLocked(EngineLoopBlocked):
    name = "engine-loop-locked"
    about = "the engine's event loop waits for a lock that the thread lock-holder keeps"
    fault = "block-lock"


class EngineInD(EngineLoopBlocked):
    name = "engine-in-D"
    about = "the engine's event loop reads a file of a file system that does not answer: state D"
    fault = "block-disk"

    def enter(self, bed: Bed) -> None:
        path = bed.undo.enter_context(dead_file(bed.run_dir))
        self.engine(bed).http(do="set", fault=self.fault, path=path)
        bed.client("harness", do="run")


class EngineNotAccepting(EngineFault):
    name = "engine-not-accepting"
    about = "the engine listens and never accepts"
    fault = "not-accepting"

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        status = self.engine(bed).http(do="status")
        return not status["accepting"] and not status["in_flight"]


class SchedulerQueue(Wedge):
    name = "scheduler-queue"
    about = "the scheduler never admits its waiting queue"

    def engine_name(self, bed: Bed) -> str | None:
        return bed.chosen_engine or next(iter(bed.engines))

    def enter(self, bed: Bed) -> None:
        self.engine(bed).scheduler(do="set", hold=True)
        bed.client("harness", do="run")

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return bool(self.engine(bed).scheduler(do="status")["num_queue_reqs"] >= bed.clients)


class SchedulerLivelock(SchedulerQueue):
    name = "scheduler-livelock"
    about = "the scheduler looks through its waiting queue without end and admits nothing"
    settles_s = STALLED_S

    def enter(self, bed: Bed) -> None:
        self.engine(bed).scheduler(do="set", livelock=True)
        bed.client("harness", do="run")


class PdBootstrap(Wedge):
    name = "pd-bootstrap"
    about = "both schedulers have the requests, and prefill's does not read the handshakes of decode's"
    disaggregated_only = True
    settles_s = STALLED_S

    def engine_name(self, bed: Bed) -> str | None:
        return "prefill"

    def enter(self, bed: Bed) -> None:
        bed.engines["prefill"].scheduler(do="set", deaf=True, publish=True)
        bed.engines["decode"].scheduler(do="set", publish=True)
        bed.client("harness", do="run")

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        prefill = self.engine(bed).scheduler(do="status")["num_prefill_bootstrap_queue_reqs"]
        decode = bed.engines["decode"].scheduler(do="status")["num_decode_transfer_queue_reqs"]
        return bool(min(prefill, decode) >= bed.clients)


class StreamStalls(Wedge):
    name = "stream-stalls-after-5-tokens"
    about = "a decode batch never ends, after 5 tokens of every answer"
    settles_s = STALLED_S

    def engine_name(self, bed: Bed) -> str | None:
        return bed.chosen_engine or ("engine0" if bed.regular else "decode")

    def enter(self, bed: Bed) -> None:
        self.engine(bed).scheduler(do="set", stall_after=TOKENS_BEFORE_THE_STALL)
        bed.client("harness", do="run")

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return bool(self.engine(bed).scheduler(do="status")["stalled"])


class _UnderLoad(Wedge):
    """A fault that comes while the harness is served."""

    def engine_name(self, bed: Bed) -> str | None:
        return bed.chosen_engine or ("engine0" if bed.regular else "decode")

    def enter(self, bed: Bed) -> None:
        before = completed_by_client(bed)
        bed.client("harness", do="run")
        bed.wait_for("every client to wait for an answer", lambda: all_wait(bed, before))
        self.strike(bed)

    def strike(self, bed: Bed) -> None:
        raise NotImplementedError

    def mute(self, bed: Bed) -> frozenset[str]:
        return frozenset({self.engine(bed).name})

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return True


class SchedulerStopped(_UnderLoad):
    name = "scheduler-stopped"
    about = "the engine's scheduler was stopped by a signal while it served"

    def strike(self, bed: Bed) -> None:
        pid = bed.pids.engines[self.engine(bed).name].scheduler
        bed.undo.callback(bed.send_signal, pid, signal.SIGCONT)
        bed.send_signal(pid, signal.SIGSTOP)


class SchedulerDead(_UnderLoad):
    name = "scheduler-dead"
    about = "the engine's scheduler was killed while it served, and its HTTP process goes on"
    spoils = True

    def strike(self, bed: Bed) -> None:
        bed.send_signal(bed.pids.engines[self.engine(bed).name].scheduler, signal.SIGKILL)


class EngineDead(Wedge):
    name = "engine-dead"
    about = "all processes of the engine were killed, before the requests: sglang-router waits for the other leg"
    spoils = True

    def __init__(self) -> None:
        self._pids: tuple[int, ...] = ()
        self._failed = 0

    def engine_name(self, bed: Bed) -> str | None:
        return bed.chosen_engine or ("engine0" if bed.regular else "decode")

    def mute(self, bed: Bed) -> frozenset[str]:
        return frozenset({self.engine(bed).name})

    def enter(self, bed: Bed) -> None:
        engine = bed.pids.engines[self.engine(bed).name]
        self._pids = (engine.http, engine.scheduler, engine.detokenizer)
        self.hangs = bed.router.waits_for_both_legs and not bed.regular
        self._failed = bed.client("harness", do="status")["failed"]
        for pid in self._pids:
            bed.send_signal(pid, signal.SIGKILL)
        bed.end(self.engine(bed).name)
        bed.client("harness", do="run")

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        gone = all(map(processes.ended, self._pids))
        # Unified engines stand in for each other.
        return gone and (self.hangs or bed.regular or harness["failed"] - self._failed >= 2 * bed.clients)


class EngineFrozen(_UnderLoad):
    name = "engine-frozen"
    about = "the engine's cgroup was frozen while it served"

    def strike(self, bed: Bed) -> None:
        engine = bed.pids.engines[self.engine(bed).name]
        group = bed.undo.enter_context(Cgroup.made(f"{bed.run_dir.name}-frozen"))
        group.take(engine.http, engine.scheduler, engine.detokenizer)
        bed.undo.callback(group.thaw)
        group.freeze()


class EngineStarved(_UnderLoad):
    name = "engine-starved"
    about = "the engine's cgroup may use two thousandths of a CPU, and shares that with others"
    settles_s = 2.0
    others = 12

    def strike(self, bed: Bed) -> None:
        engine = bed.pids.engines[self.engine(bed).name]
        group = bed.undo.enter_context(Cgroup.made(f"{bed.run_dir.name}-starved", controller="cpu"))
        group.limit_cpu(quota_us=1000, period_us=500_000)
        for _ in range(self.others):
            other = processes.start("other", BUSY, run_dir=bed.run_dir, env={}, memory_mib=64)
            bed.undo.callback(processes.stop, [other], grace_s=0.0)
            group.take(other.pid)
        bed.undo.callback(group.lift_limit)
        group.take(engine.http, engine.scheduler, engine.detokenizer)
