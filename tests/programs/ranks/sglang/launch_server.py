"""sglang.launch_server RANKS: that many schedulers as children, and an HTTP server that keeps what is posted.

Prints its port and the pids of the ranks; obeys states on standard input, one a line, and prints "done" when every rank
has taken it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading

import setproctitle
from sglang.srt.managers.scheduler import Scheduler
from torch.distributed import distributed_c10d as dist


def run_scheduler_process(rank: int, count: int, group: dist.ProcessGroup) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    setproctitle.setproctitle(f"sglang::scheduler_TP{rank}" if count > 1 else "sglang::scheduler")
    Scheduler(group, count - 1).event_loop_normal()


def serve(listener: socket.socket) -> None:
    kept = []
    while True:
        connection, _ = listener.accept()
        if connection.recv(65536).startswith(b"GET"):
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
            connection.close()
        else:
            kept.append(connection)


def main() -> None:
    count = int(sys.argv[1])
    pairs = {(a, b): socket.socketpair() for a in range(count) for b in range(a + 1, count)}
    controls = [socket.socketpair() for _ in range(count)]
    pids = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            peers = {b if a == rank else a: pair[a != rank] for (a, b), pair in pairs.items() if rank in (a, b)}
            run_scheduler_process(rank, count, dist.ProcessGroup(rank, peers, controls[rank][1]))
        pids.append(pid)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    print(listener.getsockname()[1], *pids, flush=True)
    for line in sys.stdin:
        for ours, _ in controls:
            ours.send(b"!")
        for ours, _ in controls:
            assert ours.recv(1) == b"."
        # Every rank has forgotten what it was told: what is told from now on is of the new state.
        for ours, _ in controls:
            ours.send(line.strip().encode())
        print("done", flush=True)


main()
