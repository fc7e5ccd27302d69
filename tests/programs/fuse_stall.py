"""A file system with one file, `page`, whose reads are not answered until released: a dead NFS server, a hung disk.

    python fuse_stall.py MOUNTPOINT SECONDS [direct]

Speaks FUSE on /dev/fuse itself. Prints "ready" when mounted. SIGUSR1, or SECONDS after the start, answers every read
withheld so far and all later ones; SIGTERM unmounts and ends. With "direct" reads bypass the page cache, and then a
reader does not end by SIGKILL either. Needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys

LOOKUP, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, ACCESS = 1, 3, 14, 15, 18, 25, 26, 34
UNANSWERED = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET
FOPEN_DIRECT_IO = 1
MS_NOSUID_NODEV = 2 | 4
MNT_DETACH = 2
ENOENT, ENOSYS = 2, 38
SIZE = 65536
ROOT, PAGE = 1, 2

LIBC = ctypes.CDLL(None, use_errno=True)


class Server:
    def __init__(self, mountpoint: str, *, direct: bool) -> None:
        self.mountpoint = mountpoint
        self.direct = direct
        self.released = False
        self.withheld: list[tuple[int, int]] = []
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if LIBC.mount(b"stall", mountpoint.encode(), b"fuse.stall", MS_NOSUID_NODEV, options) != 0:
            raise OSError(ctypes.get_errno(), "mounting")

    def reply(self, unique: int, body: bytes = b"", error: int = 0) -> None:
        # The reader may be gone.
        with contextlib.suppress(OSError):
            os.write(self.device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)

    def release(self, *_: object) -> None:
        self.released = True
        while self.withheld:
            unique, length = self.withheld.pop()
            self.reply(unique, content(length))

    def stop(self, *_: object) -> None:
        LIBC.umount2(self.mountpoint.encode(), MNT_DETACH)
        os._exit(0)

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self.device, 1 << 20)
            except OSError:
                return
            _, operation, unique, node = struct.unpack_from("<IIQQ", request)
            self.answer(operation, unique, node, request[40:])

    def answer(self, operation: int, unique: int, node: int, body: bytes) -> None:
        if operation == INIT:
            # Version 7.31; ASYNC_READ, so that a page fault waits on the lock of its page.
            version = (7, 31, 65536, 1, 12, 10, 65536, 1, 16, 0)
            self.reply(unique, struct.pack("<IIIIHHIIHH", *version) + bytes(28))
        elif operation == LOOKUP and body.rstrip(b"\0") == b"page":
            self.reply(unique, struct.pack("<QQQQII", PAGE, 0, 60, 60, 0, 0) + attributes(PAGE))
        elif operation == LOOKUP:
            self.reply(unique, error=ENOENT)
        elif operation == GETATTR:
            self.reply(unique, struct.pack("<QII", 60, 0, 0) + attributes(node))
        elif operation == OPEN:
            self.reply(unique, struct.pack("<QII", 1, FOPEN_DIRECT_IO if self.direct else 0, 0))
        elif operation == READ and not self.released:
            self.withheld.append((unique, struct.unpack_from("<QQI", body)[2]))
        elif operation == READ:
            self.reply(unique, content(struct.unpack_from("<QQI", body)[2]))
        elif operation in (FLUSH, RELEASE, ACCESS):
            self.reply(unique)
        elif operation not in UNANSWERED:
            self.reply(unique, error=ENOSYS)


def content(length: int) -> bytes:
    return b"recovered\0".ljust(length, b"\0")[:length]


def attributes(node: int) -> bytes:
    mode, links, size = (0o40755, 2, 4096) if node == ROOT else (0o100755, 1, SIZE)
    times = (0,) * 6
    return struct.pack("<QQQQQQIIIIIIIIII", node, size, size // 512, *times, mode, links, 0, 0, 0, 4096, 0)


def main() -> None:
    server = Server(sys.argv[1], direct="direct" in sys.argv[3:])
    signal.signal(signal.SIGUSR1, server.release)
    signal.signal(signal.SIGALRM, server.release)
    signal.signal(signal.SIGTERM, server.stop)
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))
    print("ready", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
