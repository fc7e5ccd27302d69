"""Sockets: listeners first, then connections by owner."""

from __future__ import annotations

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Column, Table
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.values import NOTHING, optional, pid
from freezeframe.v1 import socket_pb2


def sockets(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show each socket with its queues and the age of its last byte each way; # is its place in the snapshot."""
    if not snapshot.sockets:
        return ()
    columns = (
        Column(title="#", right=True),
        Column(title="PID", right=True),
        Column(title="FD", right=True),
        Column(title="STATE"),
        Column(title="LOCAL", flexible=True),
        Column(title="REMOTE", flexible=True),
        Column(title="PEER", right=True),
        Column(title="RECV-Q", right=True),
        Column(title="SEND-Q", right=True),
        Column(title="LAST IN", right=True),
        Column(title="LAST OUT", right=True),
        Column(title="REMARKS", flexible=True),
    )
    numbered = sorted(enumerate(snapshot.sockets), key=lambda each: (each[1].state != "LISTEN", each[1].pid, each[0]))
    rows = tuple(
        (
            str(index),
            pid(each),
            pid(each, "fd"),
            each.state if each.family != "unix" else f"unix {each.state}",
            each.local or NOTHING,
            each.remote or NOTHING,
            pid(each, "peer_pid"),
            NOTHING if each.state == "LISTEN" else units.size(each.recv_queue),
            NOTHING if each.state == "LISTEN" else units.size(each.send_queue),
            optional(each, "last_in_age_ms", units.age),
            optional(each, "last_out_age_ms", units.age),
            _remarks(each),
        )
        for index, each in numbered
    )
    return (Table(columns=columns, rows=rows),)


def _remarks(each: socket_pb2.Socket) -> str:
    said = []
    if each.HasField("backlog"):
        limit = f" of {each.backlog_limit}" if each.HasField("backlog_limit") else ""
        said.append(f"{each.backlog}{limit} wait to be accepted")
    if each.retransmits_now:
        said.append(f"{units.count(each.retransmits_now, 'retransmission')} unanswered")
    if each.HasField("peer_window_bytes") and each.peer_window_bytes == 0:
        said.append("the peer reads nothing")
    moved = [
        f"{units.size(count)} {way}"
        for count, way in ((each.bytes_in_delta, "came"), (each.bytes_out_delta, "went"))
        if count
    ]
    return ", ".join([*said, *moved])
