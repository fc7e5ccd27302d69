"""What the recorder costs those it watches: rounds with it beside rounds without."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from freezeframe.agentd.bpf import loader, programs
from freezeframe.agentd.host.descriptors import sockets_of
from freezeframe.agentd.recorder.ledger import Ledger

ROUNDS = int(os.environ.get("FREEZEFRAME_ROUNDS", "20"))
ROUND_S = 2.0


@contextlib.contextmanager
def armed(directory: Path, watched: Sequence[int] = ()) -> Iterator[Ledger]:
    """All that the recorder loads, with its sweeps left to the caller. These processes are watched from the start."""
    directory.chmod(0o700)
    ledger = Ledger(loader.load(programs.LEDGER, str(directory)))
    others = [loader.load(each, str(directory)) for each in (programs.SOCKETS, programs.URING)]
    for pid in watched:
        ledger.watch(pid, sockets_of(f"/proc/{pid}"))
    try:
        yield ledger
    finally:
        ledger.close()
        for each in others:
            each.close()


def cpu_ns(pid: int) -> int:
    """Time on a CPU of all threads of a process that live."""
    total = 0
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()[0])
    return total


def spend(seconds: float, ledger: Ledger | None) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.25)
        if ledger is not None:
            ledger.sweep()
            ledger.prune()


STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")


@contextlib.contextmanager
def programs_timed() -> Iterator[None]:
    """The kernel measures how long each program runs; that itself costs some 30 ns per run."""
    before = STATISTICS.read_text()
    STATISTICS.write_text("1")
    try:
        yield
    finally:
        STATISTICS.write_text(before)


def interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Where the median of what these were drawn from lies, with 95 % confidence; sorted, at least six."""
    below, chance = 0, 0.5 ** len(ordered)
    while chance <= 0.025:
        below += 1
        chance += math.comb(len(ordered), below) * 0.5 ** len(ordered)
    return ordered[below - 1], ordered[-below]


def interleaved(
    directory: Path, watched: Sequence[int], measure: Callable[[Ledger | None], tuple[float, float]]
) -> tuple[float, tuple[float, float], float, str]:
    """Share that CPU per request grew by, with its interval; CPU per request without; in words, how this was measured.

    What else runs on the machine changes from minute to minute and is in both rounds of a pair alike; what comes first
    in a pair changes from one to the next.
    """
    runs: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for number in range(ROUNDS):
        for recorded in (number % 2 == 1, number % 2 == 0):
            with armed(directory, watched) if recorded else contextlib.nullcontext() as ledger:
                runs[recorded].append(measure(ledger))
    grown = sorted(b[0] / a[0] - 1 for a, b in zip(runs[False], runs[True], strict=True))
    cpu = statistics.median(each[0] for each in runs[False])
    rates = [statistics.median(each[1] for each in runs[recorded]) for recorded in (False, True)]
    low, high = interval(grown)
    how = (
        f"median of {ROUNDS} differences of a round with and the one beside it without; its 95 % interval "
        f"{low:+.1%} to {high:+.1%}, the middle half of the pairs {grown[ROUNDS // 4]:+.1%} to "
        f"{grown[-1 - ROUNDS // 4]:+.1%}; {rates[0]:.0f} and {rates[1]:.0f} requests/s"
    )
    return statistics.median(grown), (low, high), cpu, how
