"""What each wedge has to be called, per router, and who holds.

A holder is "router", "harness", or a process of an engine ("decode.http"); "decode" is all of that engine's,
"schedulers" are those of all engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.bed.parts import Pids


@dataclass(frozen=True, kw_only=True)
class Expected:
    code: str
    holder: str = ""

    def pids(self, pids: Pids) -> list[int]:
        """Pids of the holder, in order."""
        if not self.holder:
            return []
        if self.holder in {"router", "harness"}:
            return [getattr(pids, self.holder)]
        if self.holder == "schedulers":
            return sorted(engine.scheduler for engine in pids.engines.values())
        name, _, part = self.holder.partition(".")
        engine = pids.engines[name]
        whole = sorted((engine.http, engine.scheduler, engine.detokenizer))
        return [getattr(engine, part)] if part else whole


def _both(code: str, holder: str = "") -> dict[str, Expected]:
    return {router: Expected(code=code, holder=holder) for router in ("sglang-router", "smg")}


TABLE: Mapping[str, dict[str, Expected]] = {
    # sglang-router 0.3.2 goes on waiting for prefill; smg answers 500, and after ten of these its breaker opens.
    "router-dual-leg": {
        "sglang-router": Expected(code="ROUTER_DUAL_LEG", holder="router"),
        "smg": Expected(code="ROUTER_NO_WORKERS", holder="router"),
    },
    "stray-client": {
        "sglang-router": Expected(code="ROUTER_DUAL_LEG", holder="router"),
        "smg": Expected(code="ENGINE_HANDOFF", holder="prefill.http"),
    },
    "decode-silent": _both("ENGINE_HANDOFF", "decode.http"),
    "prefill-silent": _both("ENGINE_HANDOFF", "prefill.http"),
    "engine-loop-blocked": _both("ENGINE_HTTP_BLOCKED", "decode.http"),
    "engine-loop-locked": _both("ENGINE_HTTP_BLOCKED", "decode.http"),
    "engine-in-D": _both("PROCESS_UNINTERRUPTIBLE", "decode.http"),
    "engine-not-accepting": _both("ENGINE_NOT_ACCEPTING", "decode.http"),
    # An engine that is gone leaves no process to name: sglang-router waits for the other leg, smg answers 502.
    "engine-dead": {
        "sglang-router": Expected(code="ROUTER_DUAL_LEG", holder="router"),
        "smg": Expected(code="ROUTER_NO_WORKERS", holder="router"),
    },
    "engine-frozen": _both("PROCESS_STOPPED", "decode"),
    "engine-starved": _both("HOST_STARVED", "decode"),
    "scheduler-queue": _both("SCHEDULER_QUEUE", "prefill.scheduler"),
    "scheduler-livelock": _both("SCHEDULER_LIVELOCK", "prefill.scheduler"),
    "scheduler-stopped": _both("PROCESS_STOPPED", "decode.scheduler"),
    "scheduler-dead": _both("PROCESS_DEAD", "decode.scheduler"),
    "pd-bootstrap": _both("PD_BOOTSTRAP", "schedulers"),
    "stream-stalls-after-5-tokens": _both("DECODE_STALLED", "decode.scheduler"),
    "router-stopped": _both("PROCESS_STOPPED", "router"),
    # What smg lets wait, sglang-router refuses until all of it has gone to the silent engine.
    "router-limit": {
        "sglang-router": Expected(code="ENGINE_HANDOFF", holder="decode.http"),
        "smg": Expected(code="ROUTER_QUEUE", holder="router"),
    },
    "router-out-of-fds": _both("ROUTER_NOT_ACCEPTING", "router"),
    "breaker-open": _both("ROUTER_NO_WORKERS", "router"),
    "client-not-reading": _both("CLIENT_NOT_READING", "harness"),
    "client-gone-midstream": _both("ZOMBIE_UPSTREAM", "router"),
    # The 4 that left the client hang in the engine; that 26 more wait inside it is not seen from outside.
    "client-pool-of-4": _both("ENGINE_HANDOFF", "decode.http"),
    # From one end it cannot be told which part of the path drops.
    "path-lossy": _both("NETWORK_STALLED"),
}

# Nobody holds anything. Movement of 2 s per token is not seen in a window of 1 s, nor what a websocket carries.
QUIET = frozenset({"NOT_STUCK", "IDLE", "UNDETERMINED"})
HEALTHY: Mapping[str, frozenset[str]] = {
    "none": frozenset({"NOT_STUCK"}),
    "idle": frozenset({"IDLE"}),
    "idle-spinning": frozenset({"IDLE"}),
    "burst": frozenset({"NOT_STUCK", "IDLE"}),
    "slow-prefill": QUIET,
    "slow-stream": QUIET,
    "websockets": QUIET,
}
