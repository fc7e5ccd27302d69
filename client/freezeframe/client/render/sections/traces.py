"""What the recorder tells apart from requests: connections that came and went, threads that wait for a futex."""

from __future__ import annotations

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Column, Paragraph, Table
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.values import NOTHING, optional, pid

# Addresses that are shown: the snapshot has them by total wait.
_MOST = 20


def connection_events(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show what happened to connections, the latest first."""
    if not snapshot.connection_events:
        return ()
    columns = (
        Column(title="CLIENT", flexible=True),
        Column(title="SERVER", flexible=True),
        Column(title="WHAT"),
        Column(title="COUNT", right=True),
        Column(title="LAST", right=True),
        Column(title="BY PID", right=True),
    )
    rows = tuple(
        (each.client, each.server, each.what, f"{each.count:.0f}", f"{units.age(each.last_age_ms)} ago", pid(each))
        for each in sorted(snapshot.connection_events, key=lambda each: each.last_age_ms)
    )
    return (Paragraph(text=""), Paragraph(text="Since the recorder was armed:"), Table(columns=columns, rows=rows))


def futexes(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show who waits, the longest first, and the addresses that cost most."""
    blocks: list[Block] = []
    if snapshot.futex_waits:
        blocks += [Paragraph(text=""), Paragraph(text="Threads that wait for a futex:"), _waits(snapshot)]
    if snapshot.futex_addresses:
        blocks += [Paragraph(text=""), Paragraph(text="Futex addresses:"), _addresses(snapshot)]
    return tuple(blocks)


def _waits(snapshot: Snapshot) -> Table:
    columns = (
        Column(title="PID", right=True),
        Column(title="TID", right=True),
        Column(title="ADDRESS"),
        Column(title="OPERATION"),
        Column(title="WAITS", right=True),
        Column(title="TIMEOUT"),
    )
    rows = tuple(
        (
            str(each.pid),
            str(each.tid),
            each.address,
            each.operation or NOTHING,
            ("at least " if each.at_least else "") + optional(each, "since_ms", units.age),
            optional(each, "timeout_left_ms", lambda left: f"in {units.age(left)}") if each.timed else "no",
        )
        for each in sorted(snapshot.futex_waits, key=lambda each: -each.since_ms)
    )
    return Table(columns=columns, rows=rows)


def _addresses(snapshot: Snapshot) -> Table:
    columns = (
        Column(title="PID", right=True),
        Column(title="ADDRESS"),
        Column(title="WAITING", right=True),
        Column(title="WAITED", right=True),
        Column(title="IN ALL", right=True),
        Column(title="LAST WAKE", right=True),
        Column(title="WOKEN BY TID", flexible=True),
    )
    rows = tuple(
        (
            str(each.pid),
            each.address,
            str(each.waiters),
            f"{each.waits:.0f}",
            units.age(each.wait_ms),
            optional(each, "last_wake_age_ms", units.age),
            ", ".join(map(str, each.wakers)) or NOTHING,
        )
        for each in snapshot.futex_addresses[:_MOST]
    )
    return Table(columns=columns, rows=rows)
