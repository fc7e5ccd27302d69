"""The kernel's log while it is flooded."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.read_kernel_log import READ_KERNEL_LOG
from freezeframe.agentd.host import kernel_log
from tests.support.report import run

pytestmark = [
    pytest.mark.needs("root", "kernel"),
    pytest.mark.skipif(
        "kernel" not in os.environ.get("FREEZEFRAME_REQUIRE", ""),
        reason="overwrites the kernel's log: only where FREEZEFRAME_REQUIRE names kernel",
    ),
]
LIMIT = Path("/proc/sys/kernel/printk_devkmsg")


def test_a_flood_by_a_user_costs_neither_time_nor_a_false_finding() -> None:
    limit = LIMIT.read_text()
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        LIMIT.write_text("on\n")
        last = kernel_log.drain(descriptor).last
        writer = os.open("/dev/kmsg", os.O_WRONLY)
        for number in range(100_000):
            os.write(writer, b"NVRM: Xid (PCI:0000:04:00): 79, flood %d" % number)
        os.close(writer)
        begin = time.monotonic()
        read = kernel_log.drain(descriptor, last=last)
        assert time.monotonic() - begin < 2.0
    finally:
        LIMIT.write_text(limit)
        os.close(descriptor)
    # The ring holds far fewer: the reader that was slow is told how many it lost.
    assert read.foreign + read.overwritten >= 100_000
    assert read.overwritten > 0
    assert not [record for record in read.records if b"flood" in record.text]
    events = run(READ_KERNEL_LOG).snapshot().kernel_events
    assert not [event for event in events if "flood" in event.text]
