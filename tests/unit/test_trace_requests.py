"""What the outcome says of what the recorder could not keep; a recorder's answer over a real socket."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from freezeframe.agentd.collectors.trace_requests import TRACE_REQUESTS
from freezeframe.agentd.host import Host
from tests.support import report
from tests.support.reports import KeptReport

COUNTERS = (
    "requests",
    "responses",
    "lost_requests",
    "lost_connections",
    "lost_heads",
    "lost_processes",
    "lost_streams",
)
STATE = {
    "now_ns": 5_000_000_000, "armed_ns": 1_000_000_000, "rung": 0, "locked_bytes": 1, "evicted": 0, "io_uring_pids": [],
    "without_sockets": "", "cpu_s": 0.5, "processes": 1, "connections": 1, "max_connections": 10, "lost_lately": {},
    **dict.fromkeys(COUNTERS, 0),
}  # fmt: skip


def collected(changed: Mapping[str, Any]) -> KeptReport:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def answer() -> None:
        theirs.recv(4096)
        memory = os.memfd_create("records")
        os.write(memory, json.dumps({"requests": [], "resting": [], "connections": []}).encode())
        socket.send_fds(theirs, [json.dumps({**STATE, **changed}).encode()], [memory])
        os.close(memory)

    with ours, theirs:
        recorder = threading.Thread(target=answer)
        recorder.start()
        kept = report.run(TRACE_REQUESTS, host=Host(recorder=ours.fileno()))
        recorder.join()
    return kept


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        # Counted, but nothing of what is told now is missing for it.
        ({"lost_requests": 7, "lost_connections": 3}, []),
        ({"lost_requests": 7, "lost_lately": {"lost_requests": 2, "lost_streams": 1}},
         ["the recorder had no room for 2 requests, 1 HTTP/2 streams within the last minute"]),
        ({"io_uring_pids": [5, 9]}, ["the sockets of pid 5, 9 are served by io_uring: what it carries is not seen"]),
        ({"without_sockets": "no tracefs"}, ["closes, resets and retransmissions are not traced: no tracefs"]),
    ],
)  # fmt: skip
def test_it_is_partial_while_something_is_missing(changed: Mapping[str, Any], said: list[str]) -> None:
    kept = collected(changed)
    assert [each[0] for each in kept.partials] == said
    assert kept.snapshot().recorder.lost_requests == float(changed.get("lost_requests", 0))
