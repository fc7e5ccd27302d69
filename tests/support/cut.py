"""A snapshot of one host cut into those of several: clients, routers, prefill and decode, each with what its own agent
would have seen.

Loopback addresses become those of the hosts, and what an agent knows only of its own host goes: who is at the other
end of a connection that leaves it, and roles that come from what is elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from freezeframe.judge.correlate.joined import PID_FIELDS
from freezeframe.judge.model import Gpu, History, Host, Meta, Process, RecorderState, Series, Snapshot, Socket

Role = Process.Role
HOSTS = ("clients", "routers", "prefill", "decode")
_ADDRESS = {name: f"10.0.0.{number}" for number, name in enumerate(HOSTS, 1)}
_LOCAL = re.compile(r"\b127\.0\.0\.1:(\d+)")
_OF_HOST = frozenset({"meta", "outcomes", "host", "history", "recorder", "gpus", "kernel_events"})


def cut(snapshot: Snapshot) -> dict[str, Snapshot]:
    """The snapshots of the hosts, those without processes left out."""
    home = _homes(snapshot)
    sockets = {name: [] for name in HOSTS}  # type: dict[str, list[Socket]]
    listening = {_port(s.local): home[s.pid] for s in snapshot.sockets if s.state == "LISTEN" and s.pid in home}
    owners = {(s.local, s.remote): home[s.pid] for s in snapshot.sockets if s.family == "tcp" and s.pid in home}
    for each in snapshot.sockets:
        name = home.get(each.pid or 0) or _unowned(each, listening, owners, home)
        sockets[name].append(_of_host(each, name, listening, owners, home))
    found = {}
    for name in HOSTS:
        mine = frozenset(pid for pid, at in home.items() if at == name)
        if mine:
            found[name] = _part(snapshot, name, mine, tuple(sockets[name]), listening)
    return found


def _homes(snapshot: Snapshot) -> dict[int, str]:
    """Pid -> host."""
    kinds = {p.engine_pid or p.pid: p.disaggregation for p in snapshot.processes if p.disaggregation}
    found = {}
    for p in snapshot.processes:
        if p.role in {Role.ROUTER, Role.PROXY}:
            found[p.pid] = "routers"
        elif p.role in {Role.CLIENT, Role.LAUNCHER} or (p.role is Role.OTHER and not p.engine_pid):
            found[p.pid] = "clients"
        else:
            found[p.pid] = "decode" if kinds.get(p.engine_pid or p.pid) == "decode" else "prefill"
    return found


def _port(address: str) -> int:
    return int(address.rpartition(":")[2] or 0) if address.rpartition(":")[2].isdigit() else 0


def _unowned(
    each: Socket, listening: Mapping[int, str], owners: Mapping[tuple[str, str], str], home: Mapping[int, str]
) -> str:
    """Where an end without a process is: at its listener, or not where its other end is."""
    if _port(each.local) in listening:
        return listening[_port(each.local)]
    if each.peer_pid in home and _port(each.remote) not in listening:
        return home[each.peer_pid]
    return "clients"


def _of_host(
    each: Socket,
    name: str,
    listening: Mapping[int, str],
    owners: Mapping[tuple[str, str], str],
    home: Mapping[int, str],
) -> Socket:
    if each.family != "tcp":
        return each
    other = (
        home.get(each.peer_pid or 0)
        or owners.get((each.remote, each.local))
        or listening.get(_port(each.remote))
        or ("clients" if each.accepted else name)
    )
    local, remote = _at(each.local, name), _at(each.remote, other)
    if other == name or each.state == "LISTEN":
        return replace(each, local=local, remote=remote if each.state != "LISTEN" else each.remote)
    return replace(each, local=local, remote=remote, peer_pid=None, peer_inode=None, peer_fd=None)


def _at(address: str, name: str) -> str:
    return address.replace("127.0.0.1:", f"{_ADDRESS[name]}:")


def _part(
    snapshot: Snapshot, name: str, mine: frozenset[int], sockets: tuple[Socket, ...], listening: Mapping[int, str]
) -> Snapshot:
    values: dict[str, Any] = {}
    for field in fields(snapshot):
        value = getattr(snapshot, field.name)
        if isinstance(value, tuple) and field.name not in _OF_HOST and field.name not in {"sockets", "findings"}:
            values[field.name] = tuple(each for each in value if _is_of(each, mine, name))
    values["processes"] = tuple(_alone(each, mine) for each in values["processes"])
    values["outcomes"] = tuple(
        replace(each, pids_missed=tuple(pid for pid in each.pids_missed if pid in mine)) for each in snapshot.outcomes
    )
    values["gpus"] = tuple(gpu for gpu in snapshot.gpus if _has(gpu, mine) or (not gpu.processes and name == "prefill"))
    # A line of the kernel's log that names nobody is of the host with the GPUs.
    values["kernel_events"] = tuple(
        event for event in snapshot.kernel_events if event.pid in mine or (event.pid not in mine and name == "prefill")
    )
    values["host"] = _host(snapshot.host, mine)
    values["history"] = _history(snapshot.history, mine)
    values["recorder"] = _recorder(snapshot.recorder, mine)
    values["meta"] = replace(snapshot.meta or Meta(), host=name)
    part = Snapshot(**values)
    renamed = {f.name: _renamed(getattr(part, f.name), listening) for f in fields(part)}
    return replace(part, **{**renamed, "sockets": sockets})


def _is_of(record: Any, mine: frozenset[int], name: str) -> bool:
    if "pid" not in PID_FIELDS.get(type(record), ()):
        return False
    return record.pid in mine if record.pid else name == "clients"


def _alone(process: Process, mine: frozenset[int]) -> Process:
    """As its own agent knows it: a role that others give it is not known there."""
    by_others = ("connects to", "listens where", "same program")
    known = not process.role_reason.startswith(by_others) or process.role is Role.OTHER
    return process if known else replace(process, role=Role.OTHER, role_reason="")


def _has(gpu: Gpu, mine: frozenset[int]) -> bool:
    return any(process.pid in mine for process in gpu.processes)


def _host(host: Host | None, mine: frozenset[int]) -> Host | None:
    if host is None:
        return None
    throttles = tuple(replace(t, pids=tuple(p for p in t.pids if p in mine)) for t in host.throttles)
    return replace(host, throttles=tuple(t for t in throttles if t.pids))


def _history(history: History | None, mine: frozenset[int]) -> History | None:
    if history is None:
        return None
    # A peer on another host is known by its address only.
    series = tuple(_lone(s, mine) for s in history.series if s.pid is None or s.pid in mine)
    return replace(history, series=series)


def _lone(series: Series, mine: frozenset[int]) -> Series:
    return series if series.peer_pid in mine else replace(series, peer_pid=None)


def _recorder(recorder: RecorderState | None, mine: frozenset[int]) -> RecorderState | None:
    if recorder is None:
        return None
    return replace(recorder, resting=tuple(end for end in recorder.resting if end.pid in mine))


def _renamed(value: Any, listening: Mapping[int, str]) -> Any:
    """Addresses of listeners that are elsewhere, in flags and labels, as one writes them where there are hosts."""
    if isinstance(value, str):
        return _LOCAL.sub(
            lambda found: (
                f"{_ADDRESS[listening[int(found[1])]]}:{found[1]}" if int(found[1]) in listening else found[0]
            ),
            value,
        )
    if isinstance(value, tuple):
        return tuple(_renamed(each, listening) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {}
        for field in fields(value):
            old = getattr(value, field.name)
            new = _renamed(old, listening)
            if new is not old and new != old:
                changed[field.name] = new
        return replace(value, **changed) if changed else value
    return value
