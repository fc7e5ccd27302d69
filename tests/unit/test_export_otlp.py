from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format, text_format
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2

from freezeframe.client.export import otlp
from freezeframe.v1 import snapshot_pb2

SNAPSHOT = """
meta { snapshot_id: "gpu-07-1" host: "gpu-07" agent_version: "0.1.0" started_at: "2026-01-02T03:04:05.678Z"
  trigger: "stuck-for=30s" }
verdict { code: ROUTER_DUAL_LEG }
findings { code: ROUTER_DUAL_LEG hop: "router" holder_pids: 4711 holder_pids: 4712 confidence: HIGH explains: 30
  summary: "the router holds 30 requests" }
findings { code: UNDETERMINED confidence: LOW summary: "who else?" }
findings { code: NOT_STUCK }
"""


def parsed(*snapshots: snapshot_pb2.Snapshot) -> logs_pb2.LogsData:
    """Give the document as OpenTelemetry's own JSON mapping reads it; a field that is none of its fails."""
    return json_format.Parse(otlp.render(snapshots), logs_pb2.LogsData())


def told(value: common_pb2.AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return [told(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, str(kind))


def attributes(values: Any) -> dict[str, Any]:
    return {each.key: told(each.value) for each in values}


@pytest.fixture
def snapshot() -> snapshot_pb2.Snapshot:
    return text_format.Parse(SNAPSHOT, snapshot_pb2.Snapshot())


def test_a_record_per_verdict_that_stands(snapshot: snapshot_pb2.Snapshot) -> None:
    (host,) = parsed(snapshot).resource_logs
    assert attributes(host.resource.attributes) == {"service.name": "freezeframe", "host.name": "gpu-07"}
    (scope,) = host.scope_logs
    assert (scope.scope.name, scope.scope.version) == ("freezeframe", "0.1.0")
    first, second, third = scope.log_records
    assert (first.time_unix_nano, first.observed_time_unix_nano) == (1767323045678000000,) * 2
    assert (first.severity_number, first.severity_text) == (logs_pb2.SEVERITY_NUMBER_ERROR, "ERROR")
    assert (first.event_name, told(first.body)) == ("freezeframe.verdict", "the router holds 30 requests")
    assert attributes(first.attributes) == {
        "freezeframe.code": "ROUTER_DUAL_LEG",
        "freezeframe.hop": "router",
        "freezeframe.holder_pids": [4711, 4712],
        "freezeframe.confidence": "HIGH",
        "freezeframe.stuck_requests": 30,
        "freezeframe.principal": True,
        "freezeframe.snapshot_id": "gpu-07-1",
        "freezeframe.trigger": "stuck-for=30s",
    }
    assert second.severity_number == logs_pb2.SEVERITY_NUMBER_WARN
    assert attributes(second.attributes)["freezeframe.principal"] is False
    assert third.severity_number == logs_pb2.SEVERITY_NUMBER_INFO


def test_a_verdict_without_findings_is_told(snapshot: snapshot_pb2.Snapshot) -> None:
    del snapshot.findings[:]
    (record,) = parsed(snapshot).resource_logs[0].scope_logs[0].log_records
    assert attributes(record.attributes)["freezeframe.code"] == "ROUTER_DUAL_LEG"


def test_hosts_are_resources_on_one_line(snapshot: snapshot_pb2.Snapshot) -> None:
    other = snapshot_pb2.Snapshot()
    other.CopyFrom(snapshot)
    other.meta.host = "gpu-08"
    hosts = [attributes(each.resource.attributes)["host.name"] for each in parsed(snapshot, other).resource_logs]
    assert hosts == ["gpu-07", "gpu-08"]
    data = otlp.render([snapshot, other])
    assert (data.count(b"\n"), data[-1:]) == (1, b"\n")


def test_a_time_that_is_none_and_hostile_text(snapshot: snapshot_pb2.Snapshot) -> None:
    snapshot.meta.started_at = "yesterday"
    snapshot.findings[0].summary = "a\x1b[2J\nb\u202e"
    record = parsed(snapshot).resource_logs[0].scope_logs[0].log_records[0]
    assert (record.time_unix_nano, told(record.body)) == (0, "a\\x1b[2J\\x0ab\\u202e")


def test_64_bit_numbers_are_strings_as_the_mapping_wants(snapshot: snapshot_pb2.Snapshot) -> None:
    record = json.loads(otlp.render([snapshot]))["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    assert record["timeUnixNano"] == "1767323045678000000"
    assert {"key": "freezeframe.stuck_requests", "value": {"intValue": "30"}} in record["attributes"]
