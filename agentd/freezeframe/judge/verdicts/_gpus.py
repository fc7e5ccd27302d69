"""What an engine's GPUs do, as far as they tell it now."""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Engine, Facts
from freezeframe.judge.model import Gpu

# Use at and below which a GPU computes next to nothing, and the share of its power limit that it then draws at most: it
# draws more while a model holds its clocks up than without a context.
_IDLE_PERCENT, _IDLE_POWER = 5.0, 0.3


def gpus_of(facts: Facts, engine: Engine) -> tuple[tuple[int, Gpu], ...]:
    """GPUs on which a process of the engine has memory, with their positions; empty where one of them tells nothing."""
    found = []
    for index, gpu in enumerate(facts.snapshot.gpus):
        if {process.pid for process in gpu.processes} & set(engine.pids):
            # An age means that it is an earlier sample: the GPU was silent.
            if gpu.error or gpu.age_ms is not None or gpu.utilization_percent is None or gpu.power_watts is None:
                return ()
            found.append((index, gpu))
    return tuple(found)


def power_share(gpu: Gpu) -> float | None:
    """Power as a share of its limit; None when unknown."""
    if gpu.power_watts is None or not gpu.power_limit_watts:
        return None
    return gpu.power_watts / gpu.power_limit_watts


def rests(gpu: Gpu) -> bool:
    """Whether it computes nothing, by its use and its power."""
    share = power_share(gpu)
    return (gpu.utilization_percent or 0.0) <= _IDLE_PERCENT and share is not None and share <= _IDLE_POWER


def state(gpu: Gpu) -> str:
    """Use, power and clock: "GPU 0: 97 % use at 212 of 700 W, 1980 MHz"."""
    clock = "" if gpu.sm_clock_mhz is None else f", {gpu.sm_clock_mhz:.0f} MHz"
    return (
        f"GPU {gpu.index}: {gpu.utilization_percent or 0:.0f} % use at {gpu.power_watts or 0:.0f} of "
        f"{gpu.power_limit_watts or 0:.0f} W{clock}"
    )
