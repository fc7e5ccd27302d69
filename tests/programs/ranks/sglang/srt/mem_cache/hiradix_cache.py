from __future__ import annotations

from torch.distributed import distributed_c10d as dist


class HiRadixCache:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def can_terminate_prefetch(self) -> None:
        dist.all_reduce(self.group)
