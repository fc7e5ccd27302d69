from __future__ import annotations

from torch.distributed import distributed_c10d as dist


def broadcast_pyobj(group: dist.ProcessGroup, src: int = 0) -> None:
    dist.broadcast(group, src=src)
