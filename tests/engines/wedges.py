"""Wedges of real engines, made from outside or over their own API, and what each has to be called.

A holder is "router", "harness", a part ("engine.scheduler"), or "engine" for all parts of that engine.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tests.bed import processes
from tests.bed.cgroups import Cgroup
from tests.engines.stack import CLIENTS, RealStack

# Longer than a request that a rule about old ones asks for, and than an idle connection is kept open, twice.
LONG_S, SHORT_S = 11.0, 2.0
BUSY = ["/bin/sh", "-c", "while :; do :; done"]

Strike = Callable[[RealStack], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class Wedge:
    """One state. It is entered while the harness is served, but for "idle"."""

    name: str
    products: tuple[str, ...]
    strike: Strike
    """Sets the fault, and takes it away at the end."""
    code: str
    holders: tuple[str, ...] = ()
    still_s: float = SHORT_S
    """For how long nothing may have come for any client when the snapshot is taken."""
    hangs: bool = True
    """Whether every request hangs."""
    spoils: tuple[str, ...] = ()
    """Programs that have to be started again after it."""
    pair: bool = False
    waits_in: tuple[str, str] | None = None
    """The HTTP process and the function in which its tasks wait for an answer, one for each client."""


@contextlib.contextmanager
def none(stack: RealStack) -> Iterator[None]:
    stack.wait_served()
    yield


@contextlib.contextmanager
def idle(stack: RealStack) -> Iterator[None]:
    stack.quiet()
    yield


@contextlib.contextmanager
def stopped(part: str, stack: RealStack) -> Iterator[None]:
    """A process of the engine is stopped by a signal."""
    pid = stack.parts[part]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def hanging(part: str, stack: RealStack, *, in_batch: bool = False) -> Iterator[None]:
    """The main thread of a process of the engine is caught in a call that does not return."""
    os.kill(stack.parts[part], signal.SIGUSR1 if in_batch else signal.SIGUSR2)
    try:
        yield
    finally:
        stack.let_go(part.partition(".")[0])


@contextlib.contextmanager
def frozen(engine: str, stack: RealStack) -> Iterator[None]:
    """The engine's cgroup is frozen."""
    with Cgroup.made(f"{stack.run_dir.name}-frozen") as group:
        group.take(*stack.family(engine))
        group.freeze()
        try:
            yield
        finally:
            group.thaw()


@contextlib.contextmanager
def starved(engine: str, stack: RealStack) -> Iterator[None]:
    """The engine's cgroup may use two thousandths of a CPU, and shares that with others."""
    with contextlib.ExitStack() as undo:
        group = undo.enter_context(Cgroup.made(f"{stack.run_dir.name}-starved", controller="cpu"))
        group.limit_cpu(quota_us=1000, period_us=500_000)
        for _ in range(12):
            other = processes.start("other", BUSY, run_dir=stack.run_dir, env={}, memory_mib=64)
            undo.callback(processes.stop, [other], grace_s=0.0)
            group.take(other.pid)
        undo.callback(group.lift_limit)  # before they are ended: that takes CPU time too
        group.take(*stack.family(engine))
        yield


@contextlib.contextmanager
def paused(pause: str, resume: str, stack: RealStack) -> Iterator[None]:
    """Somebody paused generation, as trainers do to exchange weights, and did not resume it."""
    stack.post("engine", pause)
    try:
        yield
    finally:
        stack.post("engine", resume)


@contextlib.contextmanager
def killed(engine: str, stack: RealStack) -> Iterator[None]:
    """Every process of the engine was killed."""
    failed = stack.harness(do="status")["failed"]
    stack.kill(engine)
    stack.wait_for("requests to fail", lambda: stack.harness(do="status")["failed"] >= failed + 3 * CLIENTS)
    yield


BOTH = ("vllm", "sglang")

WEDGES = (
    Wedge(name="none", products=BOTH, strike=none, code="NOT_STUCK", hangs=False),
    Wedge(name="idle", products=BOTH, strike=idle, code="IDLE", hangs=False),
    Wedge(
        name="scheduler stopped", products=("vllm",), strike=partial(stopped, "engine.scheduler"),
        code="PROCESS_STOPPED", holders=("engine.scheduler",), waits_in=("engine.http", "RequestOutputCollector.get"),
    ),
    Wedge(
        name="scheduler stopped", products=("sglang",), strike=partial(stopped, "engine.scheduler"),
        code="PROCESS_STOPPED", holders=("engine.scheduler",),
        waits_in=("engine.http", "TokenizerManager._stream_one_response"),
    ),
    Wedge(
        name="worker stopped", products=("vllm",), strike=partial(stopped, "engine.worker"),
        code="PROCESS_STOPPED", holders=("engine.worker",),
    ),
    Wedge(
        name="detokenizer stopped", products=("sglang",), strike=partial(stopped, "engine.detokenizer"),
        code="PROCESS_STOPPED", holders=("engine.detokenizer",),
    ),
    Wedge(
        name="HTTP process stopped", products=BOTH, strike=partial(stopped, "engine.http"),
        code="PROCESS_STOPPED", holders=("engine.http",),
    ),
    Wedge(
        name="engine frozen", products=BOTH, strike=partial(frozen, "engine"),
        code="PROCESS_STOPPED", holders=("engine",),
    ),
    Wedge(
        name="engine starved", products=BOTH, strike=partial(starved, "engine"), code="HOST_STARVED",
        holders=("engine",),
    ),
    Wedge(
        name="HTTP loop blocked", products=BOTH, strike=partial(hanging, "engine.http"),
        code="ENGINE_HTTP_BLOCKED", holders=("engine.http",), still_s=LONG_S,
    ),
    Wedge(
        name="batch never ends", products=("sglang",), strike=partial(hanging, "engine.scheduler", in_batch=True),
        code="DECODE_STALLED", holders=("engine.scheduler",), still_s=LONG_S,
    ),
    Wedge(
        name="batch never ends", products=("vllm",), strike=partial(hanging, "engine.worker", in_batch=True),
        code="DECODE_STALLED", holders=("engine.scheduler", "engine.worker"), still_s=LONG_S,
    ),
    # SGLang keeps new requests in its HTTP process, vLLM in its scheduler.
    Wedge(
        name="generation paused", products=("sglang",),
        strike=partial(paused, "/pause_generation", "/continue_generation"),
        code="ENGINE_HANDOFF", holders=("engine.http",), still_s=LONG_S,
    ),
    Wedge(
        name="generation paused", products=("vllm",), strike=partial(paused, "/pause", "/resume"),
        code="SCHEDULER_QUEUE", holders=("engine.scheduler", "engine.worker"), still_s=LONG_S,
    ),
    # An engine that is gone leaves no process to name: the router refuses.
    Wedge(
        name="engine killed", products=BOTH, strike=partial(killed, "engine"), code="ROUTER_NO_WORKERS",
        holders=("router",), hangs=False, spoils=("engine", "router", "harness"),
    ),
    # A pair of prefill and decode.
    Wedge(name="none", products=("sglang",), strike=none, code="NOT_STUCK", hangs=False, pair=True),
    Wedge(name="idle", products=("sglang",), strike=idle, code="IDLE", hangs=False, pair=True),
    Wedge(
        name="prefill scheduler stopped", products=("sglang",), strike=partial(stopped, "prefill.scheduler"),
        code="PROCESS_STOPPED", holders=("prefill.scheduler",), pair=True,
    ),
    Wedge(
        name="decode scheduler stopped", products=("sglang",), strike=partial(stopped, "decode.scheduler"),
        code="PROCESS_STOPPED", holders=("decode.scheduler",), pair=True,
    ),
    Wedge(
        name="decode detokenizer stopped", products=("sglang",), strike=partial(stopped, "decode.detokenizer"),
        code="PROCESS_STOPPED", holders=("decode.detokenizer",), pair=True,
    ),
    Wedge(
        name="prefill HTTP loop blocked", products=("sglang",), strike=partial(hanging, "prefill.http"),
        code="ENGINE_HTTP_BLOCKED", holders=("prefill.http",), pair=True,
    ),
    Wedge(
        name="prefill batch never ends", products=("sglang",),
        strike=partial(hanging, "prefill.scheduler", in_batch=True),
        code="PREFILL_STALLED", holders=("prefill.scheduler",), still_s=LONG_S, pair=True,
    ),
    Wedge(
        name="decode batch never ends", products=("sglang",),
        strike=partial(hanging, "decode.scheduler", in_batch=True),
        code="DECODE_STALLED", holders=("decode.scheduler",), still_s=LONG_S, pair=True,
    ),
)  # fmt: skip
