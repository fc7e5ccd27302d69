"""One file per collector, named verb_noun. The list is written out: what runs as root must show in a diff."""

from __future__ import annotations

from freezeframe.agentd.collectors.contract import Collector
from freezeframe.agentd.collectors.snapshot_sockets import SNAPSHOT_SOCKETS

COLLECTORS: tuple[Collector, ...] = (SNAPSHOT_SOCKETS,)
