"""A bed over four hosts, with an agent on each: harness, router, prefill and decode.

A host is a pid, a mount, a network and a UTS namespace and a wall clock that is off: whoever runs in there sees these
processes, addresses and this name alone. It stands in for a machine; what it cannot stand in for is what the hosts
share with this one: the kernel (its log, its pressure, its GPUs) and the files. An agent in there has no recorder,
which wants the host's own pids.

with HostsBed.start(wedge="router-dual-leg") as bed, bed.agents(folder) as client: ...
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from freezeframe.agentd import certs
from freezeframe.agentd.roles import Role
from tests.bed.apart import descendants, inner, outside
from tests.bed.parts import Pids
from tests.bed.processes import Child
from tests.bed.spread import SpreadBed
from tests.support.compiled import c_program
from tests.support.daemon import Daemon, running_daemon

HOSTS = ("harness", "router", "prefill", "decode")
# By how much each one's wall clock is ahead of the client's.
AHEAD_MS = {"harness": 700, "router": 2000, "prefill": 0, "decode": 1300}
PORT = 7443
# Makes an /etc of the host's own, in which every program is told to load its clock.
_ETC = 'mount -t tmpfs tmpfs /mnt && cp -a /etc/. /mnt/ && echo "$0" >/mnt/ld.so.preload && mount --move /mnt /etc'
# The first process of a pid namespace: what is left over there is reaped.
_FIRST = """
import signal, socket, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
socket.sethostname(sys.argv[1])
print("up", flush=True)
sys.stdin.read()
"""


class HostsBed(SpreadBed):
    """See the module docstring; needs root and gcc."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.places["stray"] = self.places["harness"]
        self._hosts: dict[str, int] = {}
        self._of: dict[int, tuple[str, int]] = {}
        with contextlib.ExitStack() as stack:
            for name in HOSTS:
                self._hosts[name] = stack.enter_context(_host(self.places[name].command(), name))
            self._held = stack.pop_all()

    def stop(self) -> None:
        super().stop()
        self._held.close()

    def down(self) -> None:
        for child in self.children:
            _end(child)
        super().down()

    def end(self, name: str) -> None:
        for child in self.children:
            if child.name == name:
                _end(child)
        super().end(name)

    def inside(self, host: str) -> tuple[str, ...]:
        """What a command line has to begin with to be on a host."""
        return (
            shutil.which("nsenter") or "nsenter", f"--target={self._hosts[host]}",
            "--pid", "--mount", "--net", "--uts", "--",
        )  # fmt: skip

    def _inside(self, name: str, command: list[str]) -> list[str]:
        if "--parent" in command:
            # Who started it has no pid in there.
            command[command.index("--parent") + 1] = "0"
        host = "harness" if name == "stray" else name
        return [*self.inside(host), "setpriv", "--pdeathsig", "KILL", "--", *command]

    @property
    def pids(self) -> Pids:
        """As seen from outside, where they are sent signals."""
        if self._pids is None:
            own = super().pids
            started = {child.name: child.pid for child in self.children}
            first = {name: next(descendants(pid)) for name, pid in started.items()}
            self._pids = replace(
                own,
                router=first["router"],
                harness=first["harness"],
                stray=first.get("stray"),
                engines={name: outside(engine, started[name]) for name, engine in own.engines.items()},
            )
            # Of what ends or is stopped later it is to be known, too.
            self._of = {
                pid: ("harness" if name == "stray" else name, inner(pid))
                for name, number in started.items()
                for pid in descendants(number)
            }
        return self._pids

    def on_host(self, pid: int) -> tuple[str, int]:
        """Host of a process of the bed, and the pid that it has there."""
        return self._of[pid]

    @contextlib.contextmanager
    def agents(self, folder: Path) -> Iterator[Client]:
        """An agent on each host, to be reached by mutual TLS from beside them all."""
        authority = folder / "authority"
        certs.init(str(authority), days=1, force=False)
        user = folder / "config" / "freezeframe"
        certs.issue_client(str(authority), "somebody", Role.CAPTURE, out=str(user), days=1, force=False)
        lines = ["[groups]", f"all = {list(HOSTS)}"]
        daemons = {}
        with contextlib.ExitStack() as stack:
            for host in HOSTS:
                address = self.places[host].address
                lines += [f"[hosts.{host}]", f'address = "tls://{address}:{PORT}"']
                out = folder / host
                certs.issue_agent(str(authority), [address], out=str(out), days=1, force=False)
                remote = {
                    "listen": f"{address}:{PORT}", "certificate": out / "agent.crt", "key": out / "agent.key",
                    "client_ca": out / "ca.crt",
                }  # fmt: skip
                text = "\n".join(f'{key} = "{value}"' for key, value in remote.items())
                (folder / f"{host}.toml").write_text(f"[remote]\n{text}\n")
                daemons[host] = stack.enter_context(
                    running_daemon("--config", str(folder / f"{host}.toml"), inside=self.inside(host))
                )
            (user / "config.toml").write_text("\n".join(lines))
            yield Client(daemons=daemons, begin=tuple(self.switch.command()), config=user.parent)

    @contextlib.contextmanager
    def unreachable(self, host: str) -> Iterator[None]:
        """Nothing that is sent to the agent of a host arrives; its programs are reached."""
        rule = ("INPUT", "-p", "tcp", "--dport", str(PORT), "-j", "DROP")
        self.places[host].run("iptables", "-A", *rule)
        try:
            yield
        finally:
            self.places[host].run("iptables", "-D", *rule)


@dataclass(frozen=True, kw_only=True)
class Client:
    """Runs the client on a fifth machine."""

    daemons: dict[str, Daemon]
    begin: Sequence[str]
    config: Path

    def run(self, *arguments: str, cwd: Path, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.begin, sys.executable, "-m", "freezeframe.client", *arguments],
            cwd=cwd, env={**os.environ, "XDG_CONFIG_HOME": str(self.config)},
            capture_output=True, text=True, check=False, timeout=timeout_s,
        )  # fmt: skip


def _end(child: Child) -> None:
    """End a program in there; whoever entered for it reaps it and ends, too."""
    program = next(descendants(child.pid), None)
    if program is not None:
        os.kill(program, signal.SIGKILL)
    child.process.send_signal(signal.SIGCONT)
    child.process.wait(10)


@contextlib.contextmanager
def _host(begin: Sequence[str], name: str) -> Iterator[int]:
    """Namespaces of a host; gives their first process."""
    clock = c_program("clock_ahead", "-shared", "-fPIC", f"-DAHEAD_MS={AHEAD_MS[name]}")
    command = [*begin, "unshare", "--pid", "--fork", "--kill-child", "--uts", "--mount-proc", "--"]
    command += ["sh", "-c", f'{_ETC} && exec "$@"', clock, sys.executable, "-c", _FIRST, name]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        yield next(descendants(holder.pid))
    finally:
        holder.communicate()
