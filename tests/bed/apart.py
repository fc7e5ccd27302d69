"""Beds of which a part runs in a pid namespace of its own: engines in containers, or all that a harness cannot see.

with ContainedBed.start(wedge="idle") as bed: ...    pids are those of the host
with RemoteHarnessBed.start(wedge="idle") as bed: ...    pids are those that a command after `bed.inside` sees
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bed.cgroups import Cgroup
from tests.bed.parts import EnginePids, Pids
from tests.bed.spread import SpreadBed

_PID_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
_JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
_HOLD = "import sys; print('up', flush=True); sys.stdin.read()"


class ContainedBed(SpreadBed):
    """Each engine has pid, mount and network namespaces of its own, and the cgroup of a container in a pod."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._groups: dict[str, Cgroup] = {}
        self.containers = {name: f"{number:064x}" for number, name in enumerate(self.engines, 0xC0FFEE)}
        with contextlib.ExitStack() as stack:
            pod = f"kubepods-burstable-pod{self.run_dir.name.replace('-', '_')}.slice"
            stack.enter_context(Cgroup.made(pod))
            for name, identity in self.containers.items():
                self._groups[name] = stack.enter_context(Cgroup.made(f"{pod}/cri-containerd-{identity}.scope"))
            self._made = stack.pop_all()

    def stop(self) -> None:
        super().stop()
        self._made.close()

    def _inside(self, name: str, command: list[str]) -> list[str]:
        if name in self._groups:
            command = ["sh", "-c", _JOIN, str(self._groups[name].path), *_PID_NAMESPACE, *command]
        return super()._inside(name, command)

    @property
    def pids(self) -> Pids:
        if self._pids is None:
            own = super().pids
            started = {child.name: child.pid for child in self.children}
            engines = {name: outside(engine, started[name]) for name, engine in own.engines.items()}
            self._pids = replace(own, engines=engines)
        return self._pids


class RemoteHarnessBed(SpreadBed):
    """All but the harness share one pid and one network namespace: from there it is an address and nothing else."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        server = self.places["router"]
        self.places = {name: place if name == "harness" else server for name, place in self.places.items()}
        for engine in self.engines.values():
            engine.url = f"http://{server.address}:{engine.port}"
        command = server.command(*_PID_NAMESPACE, sys.executable, "-c", _HOLD)
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n"
        first = next(descendants(self._holder.pid))
        self.inside = (shutil.which("nsenter") or "nsenter", f"--target={first}", "--pid", "--mount", "--net", "--")
        """What a command line has to begin with to be in there."""

    def stop(self) -> None:
        # With the first process of a pid namespace all others in it end, and whoever entered it for them.
        self._holder.communicate()
        super().stop()

    def _inside(self, name: str, command: list[str]) -> list[str]:
        return super()._inside(name, command) if name == "harness" else [*self.inside, *command]

    @property
    def pids(self) -> Pids:
        if self._pids is None:
            own = super().pids
            self._pids = replace(own, router=inner(next(descendants(own.router))))
        return self._pids

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        raise ValueError(f"{pid} is the pid of another process here")


def descendants(pid: int) -> Iterator[int]:
    """All processes below one."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from descendants(int(child))


def inner(pid: int) -> int:
    """The pid of a process in the innermost namespace that it is in."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1])


def outside(engine: EnginePids, started: int) -> EnginePids:
    """The pids of an engine in a pid namespace, which it gives as it sees them, as they are seen from here.

    `started` is the process that was started for it.
    """
    here = {inner(pid): pid for pid in descendants(started)}
    return replace(
        engine,
        http=here[engine.http],
        scheduler=here[engine.scheduler],
        schedulers=tuple(here[pid] for pid in engine.schedulers),
        detokenizer=here[engine.detokenizer],
    )
