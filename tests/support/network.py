"""A small network of this host's kernel: namespaces joined by a bridge, or by routes, in one of its own.

Everything is held by child processes that end with this one, whatever happens to it; with the last process in a
namespace its devices and rules go. The host's own namespace is left as it is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_PATH = f"/usr/sbin:/sbin:{os.environ.get('PATH', '')}"
_HOLD = "import sys; print('up', flush=True); sys.stdin.read()"


@dataclass(frozen=True, kw_only=True)
class Place:
    """One network namespace."""

    name: str
    address: str
    # Of a process that lives in it.
    pid: int

    @property
    def path(self) -> str:
        return f"/proc/{self.pid}/ns/net"

    def command(self, *arguments: str) -> list[str]:
        """A command line that runs in it."""
        return [shutil.which("nsenter") or "nsenter", f"--net={self.path}", "--", *arguments]

    def run(self, *arguments: str) -> None:
        environment = {**os.environ, "PATH": _PATH}
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"


@dataclass(frozen=True, kw_only=True)
class Network:
    """The places by name; `switch` has the bridge and forwards."""

    switch: Place
    places: dict[str, Place]

    def publish(self, port: int, to: Place, to_port: int, *, masquerade: bool = False) -> None:
        """Publish a port of the switch's address, as a container runtime does of a host's."""
        tables = ("iptables", "-t", "nat")
        target = f"{to.address}:{to_port}"
        for chain in ("PREROUTING", "OUTPUT"):
            match = ("-d", self.switch.address, "-p", "tcp", "--dport", str(port))
            self.switch.run(*tables, "-A", chain, *match, "-j", "DNAT", "--to-destination", target)
        if masquerade:
            match = ("-d", to.address, "-p", "tcp", "--dport", str(to_port))
            self.switch.run(*tables, "-A", "POSTROUTING", *match, "-j", "MASQUERADE")


@contextlib.contextmanager
def network(*names: str, bridged: bool = True) -> Iterator[Network]:
    """Make a namespace for each name, reachable from all others: on one bridge, or each in a subnet of its own."""
    first, second = os.urandom(2)
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(_held())
        switch = Place(name="switch", address=f"10.{first}.{second}.1", pid=holder)
        switch.run("ip", "link", "set", "lo", "up")
        switch.run("sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        if bridged:
            switch.run("ip", "link", "add", "bridge", "type", "bridge")
            switch.run("ip", "address", "add", f"{switch.address}/24", "dev", "bridge")
            switch.run("ip", "link", "set", "bridge", "up")
        else:
            switch.run("ip", "address", "add", f"{switch.address}/32", "dev", "lo")
        places = {}
        for number, name in enumerate(names, 1):
            pid = stack.enter_context(_held())
            gateway = switch.address if bridged else f"10.{first}.{second}.{4 * number + 1}"
            place = Place(name=name, address=f"10.{first}.{second}.{4 * number + 2}", pid=pid)
            switch.run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
            if bridged:
                switch.run("ip", "link", "set", name, "master", "bridge")
            else:
                switch.run("ip", "address", "add", f"{gateway}/30", "dev", name)
            switch.run("ip", "link", "set", name, "up")
            for line in (
                "link set lo up",
                f"address add {place.address}/{24 if bridged else 30} dev eth0",
                "link set eth0 up",
                f"route add default via {gateway}",
            ):
                place.run("ip", *line.split())
            places[name] = place
        yield Network(switch=switch, places=places)


@contextlib.contextmanager
def _held() -> Iterator[int]:
    """A process in a network namespace of its own."""
    holder = subprocess.Popen(
        ["unshare", "--net", sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"up\n"
    try:
        yield holder.pid
    finally:
        holder.communicate()


@contextlib.contextmanager
def running(place: Place, code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program in a place, until the block ends; it is to end at the end of its input."""
    command: Sequence[str] = place.command(sys.executable, "-c", code, *arguments)
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.communicate()
