"""The load snapshot of SGLang 0.5.13 and later: one slot in /dev/shm, written in passing, format version 2."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from typing import Any

import msgpack

HEADER_STRUCT = struct.Struct("<4sHHI")
SLOT_LEN_STRUCT = struct.Struct("<I")
MAGIC, VERSION, SLOT_SIZE = b"SLNS", 2, 16 * 1024


class ShmLoadSnapshotWriter:
    def __init__(self) -> None:
        path = f"/dev/shm/sglang_loads_bed_{os.getpid()}.shm"
        self.fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        # Read through the descriptor; so nothing is left behind.
        os.unlink(path)
        size = HEADER_STRUCT.size + SLOT_SIZE
        os.ftruncate(self.fd, size)
        self.mmap = mmap.mmap(self.fd, size)
        HEADER_STRUCT.pack_into(self.mmap, 0, MAGIC, VERSION, 1, SLOT_SIZE)
        self.written = 0.0

    def write(self, mode: str, queues: dict[str, Any]) -> None:
        now = time.time()
        if now - self.written < 0.5:
            return
        self.written = now
        bootstrap, transfer = queues["num_prefill_bootstrap_queue_reqs"], queues["num_decode_transfer_queue_reqs"]
        payload = msgpack.packb(
            {
                "timestamp": now,
                "num_running_reqs": queues["num_running_reqs"],
                "num_waiting_reqs": queues["num_queue_reqs"],
                "disaggregation": [mode, bootstrap, 0, 0, transfer, 0, 0.0, 0.0],
                "queues": [queues["num_queue_reqs"], 0, 0, 0, 0],
            }
        )
        start = HEADER_STRUCT.size + SLOT_LEN_STRUCT.size
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        SLOT_LEN_STRUCT.pack_into(self.mmap, HEADER_STRUCT.size, 0)
        self.mmap[start : start + len(payload)] = payload
        SLOT_LEN_STRUCT.pack_into(self.mmap, HEADER_STRUCT.size, len(payload))
        fcntl.flock(self.fd, fcntl.LOCK_UN)
