"""What is lost is counted, what is owed is never let go, what one process does costs no other its entries."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from freezeframe.agentd.bpf import layout, loader, programs
from freezeframe.agentd.recorder.ledger import Ledger
from tests.support.bpf_objects import Objects, held_by, present
from tests.support.children import PROGRAMS

pytestmark = [pytest.mark.needs("kernel"), pytest.mark.timeout(300)]

HANGING = b"POST /owed HTTP/1.1\r\nX-Request-Id: owed-%d\r\nContent-Length: 0\r\n\r\n"
KILLS = int(os.environ.get("FREEZEFRAME_KILLS", "10"))


@contextlib.contextmanager
def flooding(connections: int, requests: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PROGRAMS / "flood.py"), str(connections), str(requests)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait(20)
        process.stdin.close()
        process.stdout.close()


def run(process: subprocess.Popen[str], ledger: Ledger) -> None:
    """Let it flood, with the sweeps of a recorder meanwhile."""
    process.stdin.write("\n")
    process.stdin.flush()
    os.set_blocking(process.stdout.fileno(), False)
    give_up = time.monotonic() + 200
    while process.stdout.readline() != "done\n":
        assert time.monotonic() < give_up
        ledger.sweep()
        ledger.prune()
        time.sleep(0.05)


@contextlib.contextmanager
def owing(count: int) -> Iterator[None]:
    """Requests of this process to itself that nobody answers."""
    with contextlib.ExitStack() as stack, socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        for number in range(count):
            client = stack.enter_context(socket.create_connection(listener.getsockname()))
            server = stack.enter_context(listener.accept()[0])
            client.sendall(HANGING % number)
            server.recv(4096)
        yield


def owed(ledger: Ledger) -> set[str]:
    return {each.request_id for each in ledger.in_flight([os.getpid()]) if each.side == "server"}


@contextlib.contextmanager
def small_ledger(directory: Path, monkeypatch: pytest.MonkeyPatch, **sizes: int) -> Iterator[Ledger]:
    """One with little room."""
    for name, value in sizes.items():
        monkeypatch.setattr(layout, name, value)
    defines = tuple((name, sizes.get(name, value)) for name, value in layout.SIZES)
    ledger = Ledger(loader.load(replace(programs.LEDGER, defines=defines), str(directory)))
    try:
        yield ledger
    finally:
        ledger.close()


def test_two_hundred_thousand_requests_are_all_seen(ledger: Ledger) -> None:
    with flooding(50, 200_000) as process:
        run(process, ledger)
        watch = ledger.watched()[process.pid]
        # Each by its client and by its server.
        assert (watch.requests, watch.responses, watch.lost) == (400_000, 400_000, 0)
        assert ledger.in_flight([process.pid]) == []


def test_sent_is_seen_and_lost(private_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        small_ledger(private_directory, monkeypatch, MAX_CONNECTIONS=1024, MAX_CONNECTIONS_PER_PROCESS=40) as ledger,
        flooding(50, 20_000) as process,
    ):
        run(process, ledger)
        watch = ledger.watched()[process.pid]
        assert watch.requests + watch.lost == 40_000
        # Of 100 ends 40 had room.
        assert watch.lost == 24_000


def test_a_flood_of_a_million_events_costs_no_other_its_entries(ledger: Ledger) -> None:
    with owing(30), flooding(200, 250_000) as process:
        before = ledger.counters()["lost_connections"]
        run(process, ledger)
        # Four events each.
        assert ledger.watched()[process.pid].requests == 500_000
        assert owed(ledger) == {f"owed-{number}" for number in range(30)}
        assert ledger.counters()["lost_connections"] == before


def test_heads_of_one_process_leave_room_for_those_of_others(
    private_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"HEADS": 64, "MAX_HEADS_PER_PROCESS": 16}
    with small_ledger(private_directory, monkeypatch, **sizes) as ledger, flooding(100, 100) as process:
        # Without a sweep: nothing is freed meanwhile.
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        assert ledger.counters()["lost_heads"] >= 400 - 16
        with owing(4):
            assert owed(ledger) == {f"owed-{number}" for number in range(4)}


def test_room_is_made_of_what_owes_nothing(private_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"MAX_CONNECTIONS": 256, "MAX_CONNECTIONS_PER_PROCESS": 256}
    with small_ledger(private_directory, monkeypatch, **sizes) as ledger, owing(30), flooding(90, 90) as process:
        run(process, ledger)
        for _ in range(5):
            ledger.prune()
        assert ledger.evicted > 0
        assert owed(ledger) == {f"owed-{number}" for number in range(30)}
        # What was taken out comes back with its next request.
        kept = sum(each.tgid == process.pid for each in ledger.connections().values())
        assert kept < 180


def test_a_full_table_is_counted(private_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"MAX_CONNECTIONS": 64, "MAX_CONNECTIONS_PER_PROCESS": 64}
    with small_ledger(private_directory, monkeypatch, **sizes) as ledger, owing(50):
        assert ledger.counters()["lost_connections"] >= 36
        found = owed(ledger)
        assert found
        ledger.prune()
        # None of them was given up for another.
        assert owed(ledger) == found


def test_kills_at_random_moments_leave_nothing(private_directory: Path) -> None:
    chance = random.Random(7)
    command = [sys.executable, str(PROGRAMS / "hold_programs.py"), str(private_directory)]
    begin = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"ready\n"
        whole_s = time.monotonic() - begin
        all_of_it = held_by(first.pid)
        first.kill()
    assert {kind for kind, _ in all_of_it} == {"prog_id", "map_id", "link_id"}
    took = []
    for _ in range(KILLS):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            held = watch_until(process.pid, time.monotonic() + chance.uniform(0.1, 1.3) * whole_s)
            process.kill()
        gone = time.monotonic()
        while left := present(held | all_of_it):
            assert time.monotonic() - gone < 3.0, left
            time.sleep(0.005)
        took.append(time.monotonic() - gone)
    # Others may have the cores now and then.
    assert statistics.median(took) < 0.25, took


def watch_until(pid: int, moment: float) -> Objects:
    """What a process and its children had of the kernel at any time until then."""
    held: Objects = set()
    while time.monotonic() < moment:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, children)):
            held |= held_by(each)
        time.sleep(0.02)
    return held
