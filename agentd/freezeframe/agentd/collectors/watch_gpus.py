"""watch_gpus: utilisation and power of every GPU, once a second until its deadline.

For the past of a snapshot. Reads NVML, which stays initialised meanwhile. Privilege: none. Cost: two questions per GPU
and second. Each GPU is asked by a thread of its own; one that does not answer has no values from then on.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.collectors.gpu_libraries import start_library
from freezeframe.agentd.host import Host
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import Gpu, Snapshot

_EVERY_S = 1.0
# Of the job's time; then another worker takes over.
_SHARE = 0.9


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over Gpu records every second."""
    until = host.clock.monotonic() + _SHARE * job.deadline_ms / 1000.0
    library = start_library(host, report)
    came: queue.Queue[Gpu] = queue.Queue()

    def ask(index: int) -> None:
        while host.clock.monotonic() < until:
            came.put(library.read(index, lambda _what: None, brief=True))
            host.clock.sleep(_EVERY_S)

    for index in range(library.count):
        threading.Thread(target=ask, args=(index,), name=f"gpu-{index}", daemon=True).start()
    report.doing("waiting for the second look")
    while (left := until - host.clock.monotonic()) > 0:
        with suppress(queue.Empty):
            report.part(Snapshot(gpus=(came.get(timeout=left),)))


WATCH_GPUS = Collector(
    name="watch_gpus", tier=Tier.OUTSIDE, collect=collect, wants=None, in_gpu_driver=True, resident=True
)
