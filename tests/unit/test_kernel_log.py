from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freezeframe.agentd.host import kernel_log
from freezeframe.agentd.host.kernel_log import Record, read_event

LINES = {
    "NVRM: Xid (PCI:0000:04:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.": (
        "xid", None, 79, "0000:04:00",
    ),
    "NVRM: Xid (PCI:0000:18:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault": (
        "xid", 4711, 31, "0000:18:00",
    ),
    "NVRM: Xid (PCI:0000:19:00): 94, pid='812', name=sglang::schedul, Contained: SM (0x1).": (
        "xid", 812, 94, "0000:19:00",
    ),
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up": (
        "sxid", None, 20034, "0000:c1:00.0",
    ),
    "Out of memory: Killed process 1234 (python) total-vm:1kB, anon-rss:1kB": ("oom", 1234, None, ""),
    "Memory cgroup out of memory: Killed process 1234 (a b) total-vm:1kB": ("oom", 1234, None, ""),
    "INFO: task nv_queue:812 blocked for more than 120 seconds.": ("hung_task", 812, None, ""),
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1234]": ("soft_lockup", 1234, None, ""),
    "rcu: INFO: rcu_sched self-detected stall on CPU": ("soft_lockup", None, None, ""),
    "mce: [Hardware Error]: Machine check events logged": ("mce", None, None, ""),
    "pcieport 0000:00:01.0: AER: Multiple Uncorrected (Fatal) error received: 0000:01:00.0": ("pcie", None, None, ""),
    "blk_update_request: I/O error, dev nvme0n1, sector 5 op 0x0:(READ)": ("disk", None, None, ""),
    "nvme nvme0: I/O 123 QID 4 timeout, aborting": ("disk", None, None, ""),
    "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out": ("nic", None, None, ""),
    "mlx5_core 0000:b1:00.0 eth2: Link down": ("nic", None, None, ""),
}  # fmt: skip
QUIET = (
    "bridge: port 5(decode) entered forwarding state",
    "python[4711]: segfault at 0 ip 0 sp 0 error 4",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "process 4711 (Xid) used deprecated API",
)


@pytest.mark.parametrize("line", LINES)
def test_lines_that_matter(line: str) -> None:
    event = read_event(line.encode())
    assert event is not None
    assert (event.kind, event.pid, event.code, event.device) == LINES[line]
    assert event.text == line


@pytest.mark.parametrize("line", QUIET)
def test_lines_that_do_not(line: str) -> None:
    assert read_event(line.encode()) is None


def test_an_xid_has_its_meaning_and_the_documented_action() -> None:
    event = read_event(next(iter(LINES)).encode())
    assert event is not None
    assert (event.meaning, event.action) == (
        "the GPU has fallen off the bus",
        "drain and reboot the node; check its power and PCIe",
    )
    unknown = read_event(b"NVRM: Xid (PCI:0000:04:00): 999, something new")
    assert unknown is not None
    assert (unknown.code, unknown.meaning, unknown.action) == (999, "", "")


def test_escapes_in_a_line_are_told() -> None:
    event = read_event(b"Out of memory: Killed process 7 (\x1b[31mred) total-vm")
    assert event is not None
    assert event.text == "Out of memory: Killed process 7 (\\x1b[31mred) total-vm"


def test_parts_of_a_record() -> None:
    data = b"6,339,5140900,-,caller=T1;NET: Registered PF_INET\n SUBSYSTEM=net\n"
    assert kernel_log.parse(data) == (Record(sequence=339, at_us=5140900, text=b"NET: Registered PF_INET"), 0)
    # Written by a user: facility 1.
    assert kernel_log.parse(b"14,340,9,-;NVRM: Xid") == (Record(sequence=340, at_us=9, text=b"NVRM: Xid"), 1)
    assert kernel_log.parse(b"garbage") is None


def drained(*records: bytes, cap: int = 20_000) -> kernel_log.Read:
    """What a log of these records gives: a socket keeps their boundaries as /dev/kmsg does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for record in records:
            theirs.send(record)
        ours.setblocking(False)
        return kernel_log.drain(ours.fileno(), cap)


def test_gaps_forgeries_and_the_cap_are_counted() -> None:
    read = drained(b"6,5,1,-;a", b"6,6,2,-;b", b"14,7,3,-;forged", b"6,12,4,-;c", b"no record", b"6,13,5,-;d", cap=2)
    assert [record.text for record in read.records] == [b"c", b"d"]
    assert (read.overwritten, read.foreign, read.cut, read.last) == (4, 1, 2, 13)


@settings(max_examples=int(os.environ.get("FREEZEFRAME_FUZZ", "300")), deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_line_is_too_odd(header: bytes, text: bytes) -> None:
    kernel_log.parse(header)
    parsed = kernel_log.parse(b"6,1,2,-;" + text)
    assert parsed is not None
    event = read_event(parsed[0].text)
    assert event is None or event.text.isprintable()


@pytest.mark.needs("root")
def test_a_forged_xid_in_the_real_log_is_not_believed() -> None:
    mark = f"freezeframe-{os.getpid()}"
    with Path("/dev/kmsg").open("w") as log:
        log.write(f"NVRM: Xid (PCI:0000:04:00): 79, pid=1, {mark}")
    read = kernel_log.read()
    assert read.foreign >= 1
    assert not [record for record in read.records if mark.encode() in record.text]
