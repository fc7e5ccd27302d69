"""The kernel's own log, read from /dev/kmsg: its records, and what those that matter to serving mean.

A user who may write to /dev/kmsg can write any line; its facility is then not the kernel's, and such lines are left
out. Reading never blocks and takes nothing away from other readers.
Sources: Documentation/ABI/testing/dev-kmsg; NVIDIA "Xid Errors" and "Fabric Manager User Guide" (SXid).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from freezeframe.agentd.host.text import escape

_RECORD_BYTES = 8192
CAP = 20_000
# A writer that never stops ends the pass here.
_READS = 400_000
_TEXT_BYTES = 400
# syslog's facility 0: the kernel itself.
_KERNEL = 0
_HEADER = re.compile(rb"(?P<priority>\d{1,10}),(?P<sequence>\d{1,20}),(?P<at>\d{1,20}),[^;]*;(?P<text>[^\n]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line of the kernel."""

    # Rises by one per record.
    sequence: int
    # Microseconds of the kernel's clock since boot, suspend left out.
    at_us: int
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What one pass over the log gave."""

    # Oldest first; the kernel's own only.
    records: tuple[Record, ...]
    # Records that were overwritten before they could be read.
    overwritten: int = 0
    # Records beyond the cap, the oldest ones.
    cut: int = 0
    # Records that a user wrote.
    foreign: int = 0
    # Sequence number of the last record that was read, whoever wrote it; -1 when none was.
    last: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A record that matters."""

    # "xid", "sxid", "oom", "hung_task", "soft_lockup", "mce", "pcie", "disk" or "nic".
    kind: str
    text: str
    pid: int | None = None
    # Number of an Xid or SXid.
    code: int | None = None
    # PCI address of the GPU or switch, "0000:04:00"; empty when the line has none.
    device: str = ""
    # What the number means, and what its vendor says to do; empty when it is not in the table.
    meaning: str = ""
    action: str = ""
    # Whether the device does no more work until that is done.
    fatal: bool = False


# Xid -> meaning, action, whether the GPU does no more work until something is done.
XIDS: dict[int, tuple[str, str, bool]] = {
    13: ("graphics engine exception, mostly a fault of the program", "restart the program", False),
    31: ("GPU memory page fault, mostly a fault of the program", "restart the program", False),
    32: ("invalid or corrupted push buffer stream", "restart the program; run diagnostics if it comes again", False),
    43: ("the program's work on this GPU was stopped", "restart the program", False),
    45: ("the program's channels were torn down, mostly after its end", "look for the Xid before this one", False),
    46: ("the GPU stopped processing", "reset the GPU", True),
    48: ("double-bit ECC error", "drain the node and reset the GPU", True),
    61: ("internal microcontroller breakpoint", "reset the GPU", True),
    62: ("internal microcontroller halt", "reset the GPU", True),
    63: ("a memory row or page was retired", "reset the GPU when it is convenient", False),
    64: ("retiring a memory row or page failed", "reset the GPU", True),
    68: ("video processor exception", "restart the program", False),
    69: ("graphics engine class error", "restart the program", False),
    74: ("NVLink error", "check the links (nvidia-smi nvlink -e), reset the GPU", True),
    79: ("the GPU has fallen off the bus", "drain and reboot the node; check its power and PCIe", True),
    92: ("high rate of single-bit ECC errors", "run diagnostics", False),
    94: ("contained ECC error: the program's memory is lost", "restart the program", False),
    95: ("uncontained ECC error: every program on the GPU is affected", "drain the node and reset the GPU", True),
    109: ("context switch timed out", "restart the program; reset the GPU if it comes again", True),
    110: ("security fault", "drain and reboot the node", True),
    119: ("the GPU's system processor (GSP) does not answer", "drain the node and reset the GPU", True),
    120: ("error of the GPU's system processor (GSP)", "drain the node and reset the GPU", True),
    121: ("C2C link error", "reset the GPU when it is convenient", False),
    136: ("link training failed", "reset the GPU", True),
    140: ("uncorrected ECC error", "drain the node and reset the GPU", True),
    143: ("GPU initialisation failed", "reset the GPU", True),
    145: ("NVLink error", "check the links (nvidia-smi nvlink -e), reset the GPU", True),
    149: ("NVLink error", "check the links (nvidia-smi nvlink -e), reset the GPU", True),
    154: ("what the GPU needs to recover has changed", "do what the line says", False),
}

_DEVICE = rb"\(PCI:(?P<device>[0-9a-fA-F:.]{1,20})\)"
_XID = re.compile(rb"NVRM: Xid " + _DEVICE + rb": (?P<code>\d{1,5})(?:, pid='?(?P<pid>\d{1,10}))?")
_SXID = re.compile(rb"nvidia-nvswitch\d*: SXid " + _DEVICE + rb": (?P<code>\d{1,6}), (?P<how>Fatal|Non-fatal)?")
_PATTERNS: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("oom", re.compile(rb"(?:Out of memory|Memory cgroup out of memory): Killed process (?P<pid>\d{1,10}) ")),
    ("hung_task", re.compile(rb"INFO: task .{1,64}:(?P<pid>\d{1,10}) blocked for more than \d+ seconds")),
    ("soft_lockup", re.compile(rb"BUG: soft lockup - CPU#\d+ stuck for \d+s! \[.{1,64}:(?P<pid>\d{1,10})\]")),
    ("soft_lockup", re.compile(rb"rcu: INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stall")),
    ("mce", re.compile(rb"(?:^|: )\[?(?:Hardware Error\]|Machine check events logged)|^mce: ")),
    ("pcie", re.compile(rb"\bAER: .*(?:[Ee]rror|severity)|PCIe Bus Error")),
    ("disk", re.compile(rb"I/O error, dev |Buffer I/O error|EXT4-fs error|XFS .*[Cc]orrupt|nvme\w*: I/O .*timeout")),
    ("nic", re.compile(rb"NETDEV WATCHDOG: |Link (?:is )?[Dd]own\b|mlx5_core .*(?:health|[Ff]atal|timeout)")),
)


def read(path: str = "/dev/kmsg", *, cap: int = CAP) -> Read:
    """Read all that the kernel still has, at most the newest `cap` records. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return drain(descriptor, cap)
    finally:
        os.close(descriptor)


def drain(descriptor: int, cap: int = CAP, *, last: int = -1) -> Read:
    """Read on from where a descriptor of the log stands, opened with O_NONBLOCK. Raises OSError.

    `last` is that of the pass before, so that what was overwritten in between is counted.
    """
    records: list[Record] = []
    overwritten = cut = foreign = 0
    for _ in range(_READS):
        try:
            data = os.read(descriptor, _RECORD_BYTES)
        except BlockingIOError:
            break
        except OSError as error:
            # The record that came next is overwritten by now; the kernel goes on with the oldest one it has.
            if error.errno == errno.EPIPE:
                continue
            raise
        if not data:
            break
        parsed = parse(data)
        if parsed is None:
            continue
        record, facility = parsed
        if last >= 0:
            overwritten += max(0, record.sequence - last - 1)
        last = record.sequence
        if facility != _KERNEL:
            foreign += 1
            continue
        records.append(record)
        if len(records) >= 2 * cap:
            cut += len(records) - cap
            del records[: len(records) - cap]
    cut += max(0, len(records) - cap)
    return Read(records=tuple(records[-cap:]), overwritten=overwritten, cut=cut, foreign=foreign, last=last)


def parse(data: bytes) -> tuple[Record, int] | None:
    """One record and its facility; None for what is no record."""
    found = _HEADER.match(data)
    if found is None:
        return None
    record = Record(sequence=int(found["sequence"]), at_us=int(found["at"]), text=found["text"])
    return record, int(found["priority"]) >> 3


def find_events(records: Iterable[Record]) -> tuple[tuple[Record, Event], ...]:
    """Every record that matters, with what it says."""
    return tuple((record, event) for record in records if (event := read_event(record.text)) is not None)


def read_event(text: bytes) -> Event | None:
    """What one line says; None when it does not matter to serving."""
    plain = escape(text, _TEXT_BYTES)
    found = _XID.search(text)
    if found is not None:
        code = int(found["code"])
        meaning, action, fatal = XIDS.get(code, ("", "", False))
        return Event(
            kind="xid",
            text=plain,
            pid=int(found["pid"]) if found["pid"] else None,
            code=code,
            device=found["device"].decode(),
            meaning=meaning,
            action=action,
            fatal=fatal,
        )
    found = _SXID.search(text)
    if found is not None:
        fatal = found["how"] == b"Fatal"
        return Event(
            kind="sxid",
            text=plain,
            code=int(found["code"]),
            device=found["device"].decode(),
            meaning="fatal NVSwitch error" if fatal else "NVSwitch error",
            action="drain the node; reset its GPUs and switches" if fatal else "",
            fatal=fatal,
        )
    for kind, pattern in _PATTERNS:
        found = pattern.search(text)
        if found is not None:
            named = found.groupdict().get("pid")
            return Event(kind=kind, text=plain, pid=int(named) if named else None)
    return None
