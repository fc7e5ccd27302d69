"""launch.py RANKS: that many schedulers as children. Prints their pids; obeys states on standard input, one a line,
and prints "done" when every rank has taken it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time

import setproctitle
from sglang.srt.managers.scheduler import Scheduler
from torch.distributed import distributed_c10d as dist


def main() -> None:
    count = int(sys.argv[1])
    pairs = {(a, b): socket.socketpair() for a in range(count) for b in range(a + 1, count)}
    controls = [socket.socketpair() for _ in range(count)]
    pids = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            setproctitle.setproctitle(f"sglang::scheduler_TP{rank}" if count > 1 else "sglang::scheduler")
            peers = {b if a == rank else a: pair[a != rank] for (a, b), pair in pairs.items() if rank in (a, b)}
            Scheduler(dist.ProcessGroup(rank, peers, controls[rank][1]), count - 1).event_loop_normal()
        pids.append(pid)
    print(*pids, flush=True)
    for line in sys.stdin:
        for ours, _ in controls:
            ours.send(b"!")
        for ours, _ in controls:
            assert ours.recv(1) == b"."
        # Every rank has forgotten what it was told: what is told from now on is of the new state.
        for ours, _ in controls:
            ours.send(line.strip().encode())
        print("done", flush=True)
    time.sleep(3600)


main()
