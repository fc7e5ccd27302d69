"""OpenTelemetry's logs as JSON (opentelemetry.io/docs/specs/otlp, file exporter: one document on one line).

A resource per host, a log record per verdict that stands; `freezeframe.principal` marks the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from freezeframe.client.export.findings import standing
from freezeframe.client.export.moments import unix_ns
from freezeframe.client.render.guard import clean, clean_json
from freezeframe.client.render.sections.verdict import CALM
from freezeframe.client.render.values import enum_name
from freezeframe.v1 import snapshot_pb2, verdict_pb2

# Severity numbers of opentelemetry/proto/logs/v1/logs.proto.
_INFO, _WARN, _ERROR = (9, "INFO"), (13, "WARN"), (17, "ERROR")
_DOUBTFUL = frozenset({"UNDETERMINED", "UNSPECIFIED"})


def render(snapshots: Iterable[snapshot_pb2.Snapshot]) -> bytes:
    """Give the document."""
    document = {"resourceLogs": [_host(snapshot) for snapshot in snapshots]}
    return (clean_json(json.dumps(document, ensure_ascii=False)) + "\n").encode()


def _host(snapshot: snapshot_pb2.Snapshot) -> dict[str, Any]:
    meta = snapshot.meta
    records = [_record(snapshot, verdict, principal=not place) for place, verdict in enumerate(standing(snapshot))]
    return {
        "resource": {"attributes": _attributes({"service.name": "freezeframe", "host.name": meta.host})},
        "scopeLogs": [{"scope": {"name": "freezeframe", "version": clean(meta.agent_version)}, "logRecords": records}],
    }


def _record(snapshot: snapshot_pb2.Snapshot, verdict: verdict_pb2.Verdict, *, principal: bool) -> dict[str, Any]:
    code = enum_name(verdict, "code")
    number, text = _INFO if code in CALM else _WARN if code in _DOUBTFUL else _ERROR
    # 64-bit numbers are strings in protobuf's JSON.
    moment = str(unix_ns(snapshot.meta.started_at))
    return {
        "timeUnixNano": moment,
        "observedTimeUnixNano": moment,
        "severityNumber": number,
        "severityText": text,
        "eventName": "freezeframe.verdict",
        "body": _value(verdict.summary),
        "attributes": _attributes(
            {
                "freezeframe.code": code,
                "freezeframe.hop": verdict.hop,
                "freezeframe.holder_pids": list(verdict.holder_pids),
                "freezeframe.holder_hosts": list(verdict.holder_hosts),
                "freezeframe.holder_address": verdict.holder_address,
                "freezeframe.confidence": enum_name(verdict, "confidence"),
                "freezeframe.stuck_requests": verdict.explains,
                "freezeframe.principal": principal,
                "freezeframe.snapshot_id": snapshot.meta.snapshot_id,
                "freezeframe.trigger": snapshot.meta.trigger,
            }
        ),
    }


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value not in ("", [])]


def _value(value: str | bool | int | list[int] | list[str]) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(each) for each in value]}}
    if isinstance(value, bool):
        return {"boolValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": clean(value)}
