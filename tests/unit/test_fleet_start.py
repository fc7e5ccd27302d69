"""Many hosts begin together, and none waits for one that does not come."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import pytest

from freezeframe.client import fleet
from freezeframe.client.connection import Agent
from freezeframe.client.errors import AgentNotThereError, AgentVersionError
from freezeframe.v1 import service_pb2


class Told:
    """An agent that gives its name as its snapshot."""

    def __init__(self, name: str, ports: tuple[int, ...] = ()) -> None:
        self.name = name
        self.ports = ports
        self.asked: service_pb2.CaptureRequest | None = None

    def capabilities(self) -> service_pb2.GetCapabilitiesResponse:
        return service_pb2.GetCapabilitiesResponse(serving_ports=self.ports)

    def capture(self, request: service_pb2.CaptureRequest, _deadline_s: float) -> Any:
        self.asked = request
        return self

    def receive_into(self, target: IO[bytes], on_progress: Any) -> service_pb2.CaptureDone:
        on_progress(service_pb2.Progress())
        target.write(self.name.encode())
        return service_pb2.CaptureDone()


def taken(hosts: list[str], reach: fleet.Reach, folder: Path) -> dict[str, fleet.Answer]:
    answers = fleet.capture(hosts, reach, service_pb2.CaptureRequest(), 1.0, str(folder))
    assert [each.host for each in answers] == hosts
    return {each.host: each for each in answers}


def test_five_hundred_hosts_of_which_fifty_are_dead(tmp_path: Path) -> None:
    hosts = [f"n{number}" for number in range(500)]

    @contextmanager
    def reach(host: str) -> Iterator[Agent]:
        if int(host[1:]) % 10 == 0:
            raise AgentNotThereError(f"connecting to {host}: refused")
        yield cast("Agent", Told(host))

    answers = taken(hosts, reach, tmp_path)
    assert sum(each.error is not None for each in answers.values()) == 50
    assert Path(answers["n7"].path).read_bytes() == b"n7"
    assert all(each.clock is not None for each in answers.values() if each.error is None)


def test_who_comes_late_is_not_waited_for_and_captured_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "ARM_S", 0.05)
    others = threading.Event()

    @contextmanager
    def reach(host: str) -> Iterator[Agent]:
        # The slow one comes when the others have ended.
        assert host != "slow" or others.wait(20)
        yield cast("Agent", Told(host))
        if host == "quick":
            others.set()

    answers = taken(["slow", "quick"], reach, tmp_path)
    assert [each.error for each in answers.values()] == [None, None]


def test_nobody_begins_before_all_are_there(tmp_path: Path) -> None:
    there: list[str] = []
    began: list[int] = []

    class Counting(Told):
        def capture(self, _request: service_pb2.CaptureRequest, _deadline_s: float) -> Any:
            began.append(len(there))
            return self

    @contextmanager
    def reach(host: str) -> Iterator[Agent]:
        there.append(host)
        yield cast("Agent", Counting(host))

    taken([str(number) for number in range(50)], reach, tmp_path)
    assert began == [50] * 50


def test_each_is_told_on_which_ports_all_of_them_serve(tmp_path: Path) -> None:
    class Old(Told):
        def capabilities(self) -> service_pb2.GetCapabilitiesResponse:
            raise AgentVersionError("asking old: it does not know this call")

    agents = {"a": Told("a", (30000, 8000)), "b": Told("b", (8000,)), "old": Old("old")}

    @contextmanager
    def reach(host: str) -> Iterator[Agent]:
        yield cast("Agent", agents[host])

    taken(list(agents), reach, tmp_path)
    assert [each.asked for each in agents.values()] == [service_pb2.CaptureRequest(toward=[8000, 30000])] * 3


def test_a_full_disk_is_said_of_the_host(tmp_path: Path) -> None:
    @contextmanager
    def reach(host: str) -> Iterator[Agent]:
        yield cast("Agent", Told(host))

    answers = taken(["a"], reach, tmp_path / "missing")
    assert str(answers["a"].error) == "keeping what came of a: No such file or directory"
