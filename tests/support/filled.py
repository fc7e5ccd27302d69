"""Model objects with every field set, and canned snapshots, for whoever needs one."""

from __future__ import annotations

import dataclasses
import typing
from enum import Enum

from freezeframe.judge.model import Evidence, Meta, Outcome, Process, Snapshot, Socket, Verdict


def filled(kind: type) -> object:
    """One object with every field set to something that is not its default."""
    return kind(**{name: filled_value(hint) for name, hint in typing.get_type_hints(kind).items()})


def filled_value(hint: typing.Any) -> object:
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if typing.get_origin(item) is tuple:
            return (("a", "1"), ("b", "2"))
        return (filled_value(item), filled_value(item))
    if typing.get_args(hint):
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    if dataclasses.is_dataclass(hint):
        return filled(typing.cast("type", hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)[-1]
    return {str: "ü\U0001f600", float: 1.5, int: 4_294_967_295, bool: True, bytes: b"\xff\0"}[hint]


def filled_snapshot() -> Snapshot:
    return typing.cast("Snapshot", filled(Snapshot))


def canned_snapshot(
    snapshot_id: str = "gpu-07-20260102T030405-abcd", *, host: str = "gpu-07", note: str = ""
) -> Snapshot:
    """A small snapshot as an engine returns it: two processes, a socket, three outcomes, a verdict."""
    verdict = Verdict(
        code=Verdict.Code.ROUTER_HOLDS,
        hop="router",
        holder_pids=(4711,),
        summary="the router holds 30 requests",
        evidence=(Evidence(text="30 requests are owed", ref="sockets[0]"),),
        explains=30,
    )
    return Snapshot(
        meta=Meta(
            snapshot_id=snapshot_id,
            host=host,
            agent_version="0.1.0",
            started_at="2026-01-02T03:04:05.678Z",
            duration_ms=321.5,
            trigger="snap",
            note=note,
            schema=1,
        ),
        outcomes=(
            Outcome(collector="snapshot_processes", status=Outcome.Status.OK, duration_ms=12.0, items=2),
            Outcome(collector="snapshot_sockets", status=Outcome.Status.OK, duration_ms=30.0, items=1),
            Outcome(
                collector="read_logs",
                status=Outcome.Status.PARTIAL,
                detail="reading /var/log/router.log: cut at 4 MiB",
                duration_ms=40.0,
            ),
        ),
        processes=(
            Process(pid=4711, role=Process.Role.ROUTER, title="sglang::router"),
            Process(pid=4712, role=Process.Role.CLIENT, title="harness"),
        ),
        sockets=(Socket(family="tcp", state="ESTABLISHED", pid=4711, peer_pid=4712, recv_queue=17),),
        verdict=verdict,
        findings=(verdict,),
    )
