from __future__ import annotations

import json

import pytest

from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import Process

JOB = Job(
    job_id=7,
    collector="snapshot_processes",
    targets=(Target(pid=4711, start_ticks=123, role=Process.Role.ROUTER, ports=(30000, 29000)),),
    window_ms=1000.0,
    toward=(30000,),
)


def test_a_job_survives_the_wire() -> None:
    assert Job.decode(JOB.encode()) == JOB


@pytest.mark.parametrize(
    "change",
    [{"collector": 5}, {"surprise": "x"}, {"targets": [{"pid": 1}]}, {"targets": 3}, {"job_id": "7"}, {"caps": []}],
)
def test_what_is_not_a_job_is_refused(change: dict[str, object]) -> None:
    data = json.dumps({**json.loads(JOB.encode()), **change}).encode()
    with pytest.raises(ValueError, match="decoding a job"):
        Job.decode(data)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"null", b'{"a":1}'])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="decoding a job"):
        Job.decode(data)
