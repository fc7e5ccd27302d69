"""The engine of tests/programs/ranks: real processes with SGLang's names that wait for each other, or do not."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from freezeframe.agentd.host import Host, procfs
from tests.support import report
from tests.support.children import PROGRAMS


@dataclass(frozen=True, kw_only=True)
class Ranks:
    process: subprocess.Popen[str]
    # Of its HTTP server.
    port: int
    pids: tuple[int, ...]

    def take(self, state: str) -> None:
        self.process.stdin.write(f"{state}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def asleep(self, *pids: int) -> None:
        """Wait until these ranks are where they stay."""
        seen = dict.fromkeys(pids, -1)

        def still() -> bool:
            found = {}
            for pid in pids:
                status = procfs.status(Host().proc(pid))
                found[pid] = status.voluntary_switches if procfs.stat(Host().proc(pid)).state == "S" else -2
            before = dict(seen)
            seen.update(found)
            return before == found

        for _ in range(5):
            report.until(still)


@contextlib.contextmanager
def ranks(count: int) -> Iterator[Ranks]:
    process = subprocess.Popen(
        [sys.executable, "-m", "sglang.launch_server", str(count)],
        cwd=PROGRAMS / "ranks", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        port, *pids = map(int, process.stdout.readline().split())
        yield Ranks(process=process, port=port, pids=tuple(pids))
    finally:
        process.kill()
        process.wait(20)
        process.stdin.close()
        process.stdout.close()
