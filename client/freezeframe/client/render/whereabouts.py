"""Where one request is: every process that has it, in the order of the path.

Of several hosts that were captured together a snapshot of all of them is looked into, as `judge.fleet` joins them.
"""

from __future__ import annotations

import json as plain_json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf import json_format

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Column, Paragraph, Section, Table, Tone
from freezeframe.client.render.guard import clean_json
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.values import NOTHING, enum_name, optional
from freezeframe.judge.correlate.joined import number_of, own_pid
from freezeframe.v1 import log_pb2, request_pb2

# Longer numbers are no place in a file of ours.
_REFERENCE = re.compile(r"requests\[(\d{1,9})\]", re.ASCII)
# Fields of Snapshot that are looked into.
READ = ("requests", "log_requests", "hops", "processes")
_SERVER = request_pb2.Request.Side.SERVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one snapshot says of the request."""

    snapshot: Snapshot
    requests: tuple[request_pb2.Request, ...]
    log_requests: tuple[log_pb2.LogRequest, ...]
    # Of several hosts: their names, by their number in pids (`judge.correlate.joined`).
    names: Mapping[int, str]


def find(snapshot: Snapshot, request_id: str, names: Mapping[int, str] = MappingProxyType({})) -> Found:
    """Find the request by its whole id, and the same request one hop further by the references of its records."""
    chosen = {index for index, each in enumerate(snapshot.requests) if each.request_id == request_id}
    while True:
        further = {
            index
            for known in chosen
            for ref in snapshot.requests[known].upstream
            if (index := _index(ref)) is not None and index < len(snapshot.requests)
        }
        if further <= chosen:
            break
        chosen |= further
    order = _places(snapshot)
    # Along the path; within one hop what came in stands before what was passed on.
    ordered = sorted(chosen, key=lambda index: (*_place(snapshot.requests[index], order), index))
    return Found(
        snapshot=snapshot,
        requests=tuple(snapshot.requests[index] for index in ordered),
        log_requests=tuple(each for each in snapshot.log_requests if each.request_id == request_id),
        names=names,
    )


def page(request_id: str, found: Iterable[Found]) -> tuple[Section, ...]:
    """Build the sentence, and the tables it rests on."""
    sections = []
    for each in found:
        tone, sentence = _sentence(request_id, each)
        sections.append(Section(title="", blocks=(Paragraph(text=sentence, tone=tone),)))
        seen = [(request.method, request.path) for request in each.requests]
        seen += [(request.method, request.path) for request in each.log_requests]
        calls = dict.fromkeys(f"{method} {path}" for method, path in seen)
        tables: list[Block] = []
        if any(call.strip() for call in calls):
            tables.append(Paragraph(text=", ".join(call.strip() for call in calls if call.strip())))
        if each.requests:
            tables.append(_request_table(each))
        if each.log_requests:
            tables.append(_log_table(each))
        sections += [Section(title="", blocks=(table,)) for table in tables]
    return tuple(sections)


def to_json(request_id: str, found: Iterable[Found], whole: Found | None) -> Iterator[str]:
    """Give the records as they stand in the snapshots, and the hop of the whole path where hosts are joined."""
    hosts = [
        {
            "host": each.snapshot.meta.host,
            "hop": hop_of(each),
            "requests": [_plain(request) for request in each.requests],
            "log_requests": [_plain(request) for request in each.log_requests],
        }
        for each in found
    ]
    document = {"request_id": request_id, "hosts": hosts}
    if whole is not None:
        document["hop"] = hop_of(whole)
    yield clean_json(plain_json.dumps(document, ensure_ascii=False, indent=1)) + "\n"


def hop_of(found: Found) -> str:
    """Name the last hop of the path that has the request; empty when none does."""
    held = [request for request in found.requests if request.side == _SERVER and request.HasField("pid")]
    if held:
        return _hop_name(found, held[-1].pid)
    if found.requests and found.requests[-1].HasField("pid"):
        return _hop_name(found, found.requests[-1].pid)
    started = [request for request in found.log_requests if not request.finished]
    return _hop_name(found, started[-1].pid) if started else ""


def _sentence(request_id: str, found: Found) -> tuple[Tone, str]:
    host = f" on {found.snapshot.meta.host or 'this host'}" if not found.names else ""
    hop = hop_of(found)
    if not hop and found.log_requests:
        last = found.log_requests[-1]
        to_headers = f" {units.age(last.latency_ms)} to its headers" if last.HasField("latency_ms") else ""
        return Tone.GOOD, (
            f"{request_id} is answered{host}: the log of {_pid(found, last.pid)} has its end,"
            f" status {last.status}{to_headers}."
        )
    if not hop:
        known = sum(1 for each in found.snapshot.requests if each.request_id) + len(found.snapshot.log_requests)
        return Tone.DOUBT, (
            f"{request_id} was not seen{host}. {units.count(known, 'request')} with an id {_was(known)}:"
            " ids come from request-id headers and from the router's log."
        )
    return Tone.STRONG, f"{request_id} is in {hop}{host}, {_since(found)}."


def _since(found: Found) -> str:
    ages = [(each.age_ms, each.at_least) for each in found.requests]
    ages += [(each.age_ms, False) for each in found.log_requests if not each.finished]
    oldest, at_least = max(ages)
    return f"since {'at least ' if at_least else ''}{units.long_age(oldest)}"


def _request_table(found: Found) -> Table:
    columns = (
        Column(title="HOP", flexible=True),
        Column(title="SIDE"),
        Column(title="SINCE", right=True),
        Column(title="LAST IN", right=True),
        Column(title="LAST OUT", right=True),
        Column(title="IN", right=True),
        Column(title="OUT", right=True),
    )
    rows = tuple(
        (
            _hop_name(found, each.pid) if each.HasField("pid") else NOTHING,
            enum_name(each, "side").lower(),
            ("at least " if each.at_least else "") + units.age(each.age_ms),
            optional(each, "last_in_age_ms", units.age),
            optional(each, "last_out_age_ms", units.age),
            optional(each, "in_bytes", units.size),
            optional(each, "out_bytes", units.size),
        )
        for each in found.requests
    )
    return Table(columns=columns, rows=rows)


def _log_table(found: Found) -> Table:
    columns = (Column(title="LOG OF"), Column(title="STARTED", right=True), Column(title="STATE", flexible=True))
    rows = tuple(
        (
            _hop_name(found, each.pid),
            f"{units.age(each.age_ms)} ago",
            f"finished, status {each.status}" if each.finished else "started, no end",
        )
        for each in found.log_requests
    )
    return Table(columns=columns, rows=rows)


def _places(snapshot: Snapshot) -> dict[int, int]:
    return {pid: place for place, hop in enumerate(snapshot.hops) for pid in hop.pids}


def _place(request: request_pb2.Request, order: dict[int, int]) -> tuple[int, bool]:
    return order.get(request.pid, len(order)), request.side != _SERVER


def _index(ref: str) -> int | None:
    found = _REFERENCE.fullmatch(ref)
    return int(found[1]) if found else None


def _hop_name(found: Found, pid: int) -> str:
    for hop in found.snapshot.hops:
        if pid in hop.pids:
            return f"{hop.name} ({_pid(found, pid)})"
    for process in found.snapshot.processes:
        if process.pid == pid:
            return f"{process.title or process.comm} ({_pid(found, pid)})"
    return _pid(found, pid)


def _pid(found: Found, pid: int) -> str:
    host = found.names.get(number_of(pid))
    return f"pid {pid}" if host is None else f"pid {own_pid(pid)} on {host}"


def _was(count: int) -> str:
    return "was seen" if count == 1 else "were seen"


def _plain(message: request_pb2.Request | log_pb2.LogRequest) -> object:
    return json_format.MessageToDict(
        message, always_print_fields_with_no_presence=True, preserving_proto_field_name=True
    )
