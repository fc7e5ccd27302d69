"""snapshot_gpus: what every GPU does, who has memory on it, and what is wrong with it.

Reads: NVML, or AMD SMI where its package is installed (not yet tried on such a GPU). Privilege: none; ECC and some
counters may want root. Cost: 40 ms with the driver's persistence mode on; without it the first call starts the driver,
which takes seconds. Cannot see: what a GPU computes.
Each GPU is asked by a thread of its own, so that one that hangs blanks no other.
"""

from __future__ import annotations

import queue
import threading

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.collectors.gpu_libraries import start_library
from freezeframe.agentd.host import Host
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import Gpu, Snapshot

# Of the job's time, for all GPUs together; what is left tells of those that did not answer.
_SHARE = 0.8


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over one Gpu record each, as they come."""
    begin = host.clock.monotonic()
    library = start_library(host, report)
    came: queue.Queue[Gpu] = queue.Queue()
    doing = dict.fromkeys(range(library.count), "handle")

    def ask(index: int) -> None:
        came.put(library.read(index, lambda what: doing.__setitem__(index, what)))

    for index in range(library.count):
        threading.Thread(target=ask, args=(index,), name=f"gpu-{index}", daemon=True).start()
    report.doing(f"asking {library.name} about {library.count} GPUs")
    until = begin + _SHARE * job.deadline_ms / 1000.0
    while doing:
        try:
            gpu = came.get(timeout=max(0.001, until - host.clock.monotonic()))
        except queue.Empty:
            break
        del doing[gpu.index]
        report.part(Snapshot(gpus=(gpu,)))
        if gpu.error:
            report.partial(f"GPU {gpu.index}: {gpu.error}")
    for index, what in doing.items():
        silent = f"no answer in {(host.clock.monotonic() - begin) * 1000.0:.0f} ms, asked for {what}"
        report.part(Snapshot(gpus=(Gpu(index=index, error=silent),)))
        hint = f"{library.tool} hangs too while the driver does: dmesg | grep -i {library.driver}"
        report.partial(f"GPU {index}: {silent}", hint)


SNAPSHOT_GPUS = Collector(name="snapshot_gpus", tier=Tier.OUTSIDE, collect=collect, wants=None, in_gpu_driver=True)
