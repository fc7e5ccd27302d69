"""A made-up /proc: the files of some processes, with any content, below a root that Host takes."""

from __future__ import annotations

import os
from pathlib import Path

KERNEL_THREAD = 0x0020_0000


class ProcTree:
    """Writes processes below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(
        self,
        pid: int,
        *,
        comm: bytes = b"sleep",
        state: bytes = b"S",
        parent: int = 1,
        start: int = 1000,
        flags: int = 0,
        uid: int = 1000,
        cgroup: bytes = b"0::/\n",
        exe: str | None = "/usr/bin/sleep",
        namespace_pids: tuple[int, ...] = (),
        cmdline: bytes = b"sleep\x0060\x00",
        netns: int = 4026531840,
        tids: tuple[int, ...] = (),
    ) -> Path:
        directory = self.root / "proc" / str(pid)
        (directory / "ns").mkdir(parents=True)
        (directory / "fd").mkdir()
        (directory / "cgroup").write_bytes(cgroup)
        (directory / "cmdline").write_bytes(cmdline)
        (directory / "limits").write_bytes(
            b"Max open files            1024                 4096                 files     \n"
        )
        if exe is not None:
            os.symlink(exe, directory / "exe")
        os.symlink(f"net:[{netns}]", directory / "ns" / "net")
        line = b"%d (%s) %s %d 1 1 0 -1 %d 0 0 0 0 150 50 0 0 20 0 %d 0 %d 4096 25" % (
            pid,
            comm,
            state,
            parent,
            flags,
            len(tids) or 1,
            start,
        )
        status = (
            b"Name:\t%s\nState:\t%s (x)\nTgid:\t%d\nPid:\t%d\nTracerPid:\t0\nUid:\t%d\t0\t0\t0\nNSpid:\t%s\n"
            b"voluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t3\n"
        ) % (
            comm.replace(b"\n", b"\\n"),
            state,
            pid,
            pid,
            uid,
            b"\t".join(b"%d" % n for n in (namespace_pids or (pid,))),
        )
        for thread in (directory, *(directory / "task" / str(tid) for tid in tids or (pid,))):
            thread.mkdir(parents=True, exist_ok=True)
            (thread / "stat").write_bytes(line)
            (thread / "status").write_bytes(status)
            (thread / "schedstat").write_bytes(b"200000000 50000000 9\n")
            (thread / "wchan").write_bytes(b"0")
            (thread / "syscall").write_bytes(b"230 0x0 0x0 0x7ffd 0x0 0x0 0x0 0x7ffc 0x7f10\n")
            (thread / "stack").write_bytes(b"[<0>] hrtimer_nanosleep+0x99/0x110\n[<0>] do_syscall_64+0x3d/0x90\n")
        return directory

    def add_many(self, pids: range) -> None:
        """Processes with the same files but for `stat`, for tests with thousands of them."""
        first = self.add(pids[0])
        line = (first / "stat").read_bytes()
        for pid in pids[1:]:
            directory = self.root / "proc" / str(pid)
            directory.mkdir()
            (directory / "stat").write_bytes(line.replace(b"%d " % pids[0], b"%d " % pid, 1))
            for name in ("status", "cgroup", "exe", "ns"):
                os.symlink(first / name if name != "exe" else "/usr/bin/sleep", directory / name)
