"""Who is told of a snapshot that nobody called for: hooks of the configuration file, each in a worker of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from freezeframe.agentd.audit import Audit, Call
from freezeframe.agentd.capture import CaptureSpec
from freezeframe.agentd.captures import Captured
from freezeframe.agentd.collectors.run_hook import RUN_HOOK
from freezeframe.agentd.config import Hook
from freezeframe.agentd.engine import Runs
from freezeframe.agentd.jobs import Job
from freezeframe.agentd.schedules.schedule import Schedule
from freezeframe.judge import file
from freezeframe.judge.model import Outcome, Verdict

# A worker is killed this much later than its hook should have ended.
_GRACE_S = 2.0
# Runs at once; what comes beyond is not told, and the audit says so.
_MOST = 8


class Hooks:
    """Tells them, and writes what came of it into the audit."""

    def __init__(self, *, hooks: Sequence[Hook], workers: Runs, audit: Audit, host: str) -> None:
        """`host` is this host's name."""
        self._hooks = hooks
        self._workers = workers
        self._audit = audit
        self._host = host
        self._running: set[asyncio.Task[None]] = set()
        self._next_job = 0

    def tell(self, schedule: Schedule, spec: CaptureSpec, captured: Captured) -> None:
        """Begin to tell every hook of this schedule."""
        for hook in self._hooks:
            if hook.schedules and schedule.name not in hook.schedules:
                continue
            if len(self._running) >= _MOST:
                self._note(hook, spec, captured, "BUSY", f"{_MOST} hooks run already", 0.0)
                continue
            task = asyncio.get_running_loop().create_task(self._run(hook, spec, captured))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, hook: Hook, spec: CaptureSpec, captured: Captured) -> None:
        self._next_job += 1
        job = Job(
            job_id=self._next_job,
            collector=RUN_HOOK.name,
            deadline_ms=(hook.timeout_s + _GRACE_S) * 1000.0,
            hook=hook.name,
            event=json.dumps(event(spec, captured, self._host)),
        )
        outcome = await self._workers.run(RUN_HOOK, job, on_part=lambda _part: None, on_doing=lambda _what, _done: None)
        done = outcome.status is Outcome.Status.OK
        self._note(hook, spec, captured, "OK" if done else "FAILED", outcome.detail, outcome.duration_ms)

    def _note(
        self, hook: Hook, spec: CaptureSpec, captured: Captured, outcome: str, detail: str, duration_ms: float
    ) -> None:
        self._audit.record(
            Call(
                who=f"schedule {spec.schedule}",
                rpc="Hook",
                targets=(f"hook {hook.name}", f"snapshot_id {captured.snapshot_id}"),
                outcome=outcome,
                detail=detail,
                duration_ms=duration_ms,
            )
        )


def event(spec: CaptureSpec, captured: Captured, host: str) -> dict[str, object]:
    """What a hook is told."""
    verdict = file.read_manifest(captured.data).verdict
    triggered = spec.triggered
    return {
        "host": host,
        "snapshot_id": captured.snapshot_id,
        "schedule": spec.schedule,
        "trigger": triggered.condition if triggered is not None else "",
        "look": triggered.look if triggered is not None else 0,
        "looks": triggered.looks if triggered is not None else 0,
        "values": dict(triggered.values) if triggered is not None else {},
        "verdict": Verdict.Code(verdict.code).name,
        "hop": verdict.hop,
        "summary": verdict.summary,
        "get": f"freezeframe get {captured.snapshot_id}",
    }
