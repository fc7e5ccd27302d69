from __future__ import annotations

from sglang.srt.utils.common import broadcast_pyobj
from torch.distributed import distributed_c10d as dist


class SchedulerRequestReceiver:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def recv_requests(self) -> None:
        if self.group.peers:
            self._broadcast_reqs_across_ranks()

    def _broadcast_reqs_across_ranks(self) -> None:
        broadcast_pyobj(self.group)
