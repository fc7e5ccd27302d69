"""The wedges, each with how it is entered, how it is left, and how the bed knows that it is in force.

A new wedge is one class and one entry in `WEDGES`. `in_force` looks at the bed's own truth only: the control
channels, never the router.
"""

from __future__ import annotations

from tests.bed.wedges.base import Wedge
from tests.bed.wedges.clients import ClientGoneMidstream, ClientNotReading, ClientPoolOf4, StrayClient
from tests.bed.wedges.engines import (
    DecodeSilent,
    EngineDead,
    EngineFrozen,
    EngineInD,
    EngineLoopBlocked,
    EngineLoopLocked,
    EngineNotAccepting,
    EngineSilent,
    EngineStarved,
    PdBootstrap,
    PrefillSilent,
    SchedulerDead,
    SchedulerLivelock,
    SchedulerQueue,
    SchedulerStopped,
    StreamStalls,
)
from tests.bed.wedges.healthy import Burst, Idle, IdleSpinning, NoWedge, SlowPrefill, SlowStream, Websockets
from tests.bed.wedges.network import PathLossy
from tests.bed.wedges.routers import BreakerOpen, RouterDualLeg, RouterLimit, RouterOutOfFds, RouterStopped

__all__ = ["WEDGES", "Wedge", "find_wedge"]

WEDGES: tuple[type[Wedge], ...] = (
    NoWedge,
    Idle,
    RouterDualLeg,
    StrayClient,
    EngineSilent,
    DecodeSilent,
    PrefillSilent,
    EngineLoopBlocked,
    EngineLoopLocked,
    EngineInD,
    EngineNotAccepting,
    EngineDead,
    EngineFrozen,
    EngineStarved,
    SchedulerQueue,
    SchedulerLivelock,
    SchedulerStopped,
    SchedulerDead,
    PdBootstrap,
    StreamStalls,
    RouterStopped,
    RouterLimit,
    RouterOutOfFds,
    BreakerOpen,
    ClientNotReading,
    ClientGoneMidstream,
    ClientPoolOf4,
    PathLossy,
    IdleSpinning,
    Burst,
    SlowPrefill,
    SlowStream,
    Websockets,
)


def find_wedge(name: str) -> Wedge:
    """A fresh wedge of that name.

    Raises:
        ValueError: there is none.
    """
    for wedge in WEDGES:
        if wedge.name == name:
            return wedge()
    raise ValueError(f"no wedge {name!r}; there are: {', '.join(w.name for w in WEDGES)}")
