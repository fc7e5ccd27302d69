"""One file per collector, named verb_noun. The list is written out: what runs as root must show in a diff."""

from __future__ import annotations

from freezeframe.agentd.collectors.contract import Collector
from freezeframe.agentd.collectors.find_processes import FIND_PROCESSES
from freezeframe.agentd.collectors.snapshot_processes import SNAPSHOT_PROCESSES
from freezeframe.agentd.collectors.snapshot_sockets import SNAPSHOT_SOCKETS

COLLECTORS: tuple[Collector, ...] = (
    FIND_PROCESSES,
    SNAPSHOT_PROCESSES,
    SNAPSHOT_SOCKETS,
)
