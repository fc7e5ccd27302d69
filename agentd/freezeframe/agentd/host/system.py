"""What the kernel says of the host as a whole: memory, pressure, file systems, clock, versions. Touches no process."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
from dataclasses import dataclass

from freezeframe.agentd.host import Host
from freezeframe.agentd.host.procfs import ProcfsError, read_file
from freezeframe.agentd.host.text import escape
from freezeframe.judge.model import Filesystem

# Types whose statvfs asks no server and no daemon.
_LOCAL_TYPES = frozenset(
    {
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "f2fs",
        "bcachefs",
        "tmpfs",
        "ramfs",
        "overlay",
        "squashfs",
        "erofs",
    }
)
# Looked at, never written to, with the state directory: where, and why it matters.
PLACES = (
    ("/", "root file system"),
    ("/var/log", "logs"),
    ("/dev/shm", "shared memory"),  # noqa: S108
    ("/tmp", "temporary files"),  # noqa: S108
)
# What a host, or a cgroup, can be short of.
RESOURCES = ("cpu", "memory", "io")
_PRESSURE = re.compile(rb"^(some|full) avg10=([\d.]+) avg60=([\d.]+) avg300=[\d.]+ total=(\d+)", re.MULTILINE)
_MEMINFO = re.compile(rb"^(\w+):\s+(\d+) kB", re.MULTILINE)
_OOM_KILLS = re.compile(rb"^oom_kill (\d+)", re.MULTILINE)
_STA_UNSYNC = 0x0040


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """One pressure file: percent of time, and microseconds of "some" since boot."""

    some_avg10: float
    some_avg60: float
    full_avg10: float
    full_avg60: float
    some_total_us: int


def parse_pressure(data: bytes) -> Stalls | None:
    """Parse a pressure file; None where there is none or it is off. "full" is missing for the CPU of old kernels."""
    rows = {kind: values for kind, *values in _PRESSURE.findall(data)}
    if b"some" not in rows:
        return None
    some, full = rows[b"some"], rows.get(b"full", [b"0", b"0", b"0"])
    try:
        return Stalls(
            some_avg10=float(some[0]),
            some_avg60=float(some[1]),
            full_avg10=float(full[0]),
            full_avg60=float(full[1]),
            some_total_us=int(some[2]),
        )
    except ValueError:
        return None


def read_pressure(host: Host, resource: str) -> Stalls | None:
    """Read the host's pressure of "cpu", "memory" or "io"."""
    return parse_pressure(_read(host, "proc/pressure", resource))


class Stalled:
    """The host's pressure from one question to the next."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._last: dict[str, tuple[float, int]] = {}

    def since(self) -> dict[str, float]:
        """Share of the time since the last call in which some task waited, percent by resource; {} the first time."""
        shares = {}
        for resource in RESOURCES:
            stalls = read_pressure(self._host, resource)
            if stalls is None:
                continue
            now = self._host.clock.monotonic()
            at, total = self._last.get(resource, (now, stalls.some_total_us))
            self._last[resource] = now, stalls.some_total_us
            if now > at:
                shares[resource] = min(100.0, (stalls.some_total_us - total) / (now - at) / 1e4)
        return shares


def read_memory(host: Host) -> dict[str, float]:
    """Read meminfo, bytes by name."""
    return {escape(name): float(kib) * 1024.0 for name, kib in _MEMINFO.findall(_read(host, "proc/meminfo"))}


def read_oom_kills(host: Host) -> float | None:
    """Read the number of OOM kills since boot; None where the kernel does not count them."""
    found = _OOM_KILLS.search(_read(host, "proc/vmstat"))
    return float(found[1]) if found else None


def read_load(host: Host) -> tuple[float, ...]:
    """Read the load over 1, 5 and 15 minutes; () when unreadable."""
    try:
        return tuple(float(field) for field in _read(host, "proc/loadavg").split()[:3])
    except ValueError:
        return ()


def read_uptime_ms(host: Host) -> float:
    """Read the time since boot; 0 when unreadable."""
    try:
        return float(_read(host, "proc/uptime").split()[0]) * 1000.0
    except (ValueError, IndexError):
        return 0.0


def read_lockdown(host: Host) -> str:
    """Read the lockdown level: "none", "integrity", "confidentiality"; "" when the kernel has none or hides it."""
    found = re.search(rb"\[(\w+)\]", _read(host, "sys/kernel/security/lockdown"))
    return escape(found[1], 32) if found else ""


def read_distribution(host: Host) -> str:
    """Read the distribution's name from os-release; "" when there is none."""
    for path in ("etc/os-release", "usr/lib/os-release"):
        found = re.search(rb"^PRETTY_NAME=(.*)$", _read(host, path), re.MULTILINE)
        if found:
            try:
                return " ".join(shlex.split(escape(found[1], 200)))
            except ValueError:
                return escape(found[1], 200)
    return ""


def read_versions(host: Host) -> tuple[tuple[str, str], ...]:
    """Read versions of drivers that matter to serving, by name."""
    found = re.search(rb"Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", _read(host, "proc/driver/nvidia/version"))
    return (("nvidia", escape(found[1], 32)),) if found else ()


def read_clock() -> str:
    """Ask the kernel whether the wall clock is kept in step: "synchronised", "unsynchronised"; "" when it won't say."""
    # struct timex is 208 bytes on 64-bit Linux: unsigned modes, then longs offset, freq, maxerror, esterror, status.
    words = (ctypes.c_long * 64)()
    try:
        result = ctypes.CDLL(None).adjtimex(words)  # modes = 0: reads only
    except (OSError, AttributeError):
        return ""
    if result < 0:
        return ""
    status = words[5] & 0xFFFF_FFFF
    return "unsynchronised" if status & _STA_UNSYNC else "synchronised"


def read_filesystems(host: Host) -> tuple[Filesystem, ...]:
    """Size and free space of the mounts that hold `PLACES` and the state directory, each once; none of the network."""
    mounts = parse_mounts(_read(host, "proc/self/mountinfo"))
    purposes: dict[str, list[str]] = {}
    state = ((host.state_dir, "state directory"),) if host.state_dir else ()
    for place, purpose in (*PLACES[:1], *state, *PLACES[1:]):
        mount = max((each for each in mounts if _holds(each, place)), key=len, default="")
        if mount and mounts[mount] in _LOCAL_TYPES:
            purposes.setdefault(mount, []).append(purpose)
    found = []
    for mount, why in purposes.items():
        try:
            stat = os.statvfs(f"{host.root}/{mount.strip('/')}")
        except OSError:
            continue
        found.append(
            Filesystem(
                mount=escape(os.fsencode(mount)),
                purpose=", ".join(why),
                size_bytes=float(stat.f_blocks * stat.f_frsize),
                available_bytes=float(stat.f_bavail * stat.f_frsize),
                free_inodes=float(stat.f_favail) if stat.f_files else None,
            )
        )
    return tuple(found)


def parse_mounts(data: bytes) -> dict[str, str]:
    """Parse mountinfo: mount point -> type; of several on one point the last, which hides the others."""
    found = {}
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if separator and len(fields) >= 6 and kind[0]:  # noqa: PLR2004 - up to the options
            found[re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])] = kind[0]
    return found


def _holds(mount: str, place: str) -> bool:
    return mount in {"/", place} or place.startswith(mount + "/")


def _read(host: Host, *parts: str) -> bytes:
    try:
        return read_file("/".join((str(host.root).rstrip("/"), *parts)))
    except ProcfsError:
        return b""
