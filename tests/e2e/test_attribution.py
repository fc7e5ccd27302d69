"""Who gets what: the verdict's attribution against what three clients of different speeds counted themselves."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.bed.fronts import NGINX, NginxBed
from tests.bed.stack import PROGRAMS
from tests.kernel.test_recorder import armed_agent
from tests.support.command import snap

pytestmark = [pytest.mark.needs("root", "kernel", "e2e"), pytest.mark.timeout(300)]
needs_nginx = pytest.mark.skipif(NGINX is None, reason="no nginx here")

# Where other beds run on this machine at the same time: look at one's own processes only.
ALONE = not os.environ.get("FREEZEFRAME_SHARED_MACHINE")
WINDOW_S, DEADLINE_S = 10, 20
LONG = ("--window", str(WINDOW_S), "--deadline", str(DEADLINE_S))
# Of streaming before the capture: none of them is at its start then, and its history has seen them for long enough.
BEFORE_S = 12
STREAMS = {"fast": 12, "proxied": 4, "slow": 1}


class Counting:
    """One counting client and what it has printed so far."""

    def __init__(self, name: str, url: str) -> None:
        command = [sys.executable, str(PROGRAMS / "counting_client.py"), "--url", url, "--name", name]
        command += ["--streams", str(STREAMS[name])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def streaming_s(self) -> float:
        """For how long it has got tokens."""
        begun = next((line["at"] for line in self.lines if line["tokens"]), None)
        return 0.0 if begun is None else float(self.lines[-1]["at"] - begun)

    def rate(self, what: str, begin: float, end: float) -> float:
        """What it got per second between two times, by the lines nearest to them."""
        first, last = (min(self.lines, key=lambda line: abs(line["at"] - at)) for at in (begin, end))
        difference: float = last[what] - first[what]
        seconds: float = last["at"] - first["at"]
        return difference / seconds


@contextlib.contextmanager
def counting(bed: NginxBed) -> Iterator[dict[str, Counting]]:
    """Three of them: to the router, to the proxy, and round both; with streams in progress for long enough."""
    urls = {"fast": bed.url, "proxied": bed.entry_url, "slow": bed.engines["decode"].url}
    with contextlib.ExitStack() as stack:
        clients = {}
        for name, url in urls.items():
            clients[name] = Counting(name, url)
            stack.callback(clients[name].stop)

        def long_enough() -> bool:
            return all(client.streaming_s() > BEFORE_S for client in clients.values())

        bed.wait_for("every client to have got tokens for long enough", long_enough, timeout_s=90)
        yield clients


@needs_nginx
def test_shares_are_those_that_the_clients_counted(tmp_path: Path) -> None:
    with armed_agent() as agent, NginxBed.start(wedge="idle") as bed:
        assert isinstance(bed, NginxBed)
        bed.wait_wedged()
        with counting(bed) as clients:
            snapshot = snap(agent.address, *LONG, *watched(bed, clients), cwd=tmp_path)
            rows = rows_of(snapshot, clients)
            begin = started(snapshot)
            bed.wait_for("the clients' counts of the window", lambda: counted_to(clients, begin + WINDOW_S + 1))
        own = {name: client.rate("bytes", begin, begin + WINDOW_S) for name, client in clients.items()}
        shown = {name: row["bytes_per_s"] for name, row in rows.items()}
        edges = {each.get("client_pid"): each for each in snapshot["edges"]}
        of_edges = {name: edges[client.process.pid]["bytes_down_delta"] for name, client in clients.items()}
        assert shares(shown) == pytest.approx(shares(own), rel=0.05)
        assert shares(of_edges) == pytest.approx(shares(own), rel=0.05)
        for name, client in clients.items():
            # Tokens are those of the ten seconds before the history was read, at the first look.
            counted = client.rate("tokens", begin - WINDOW_S, begin)
            shown_tokens, error = (rows[name][what] for what in ("tokens_per_s", "tokens_per_s_error"))
            # An error that could hide anything would say nothing.
            assert abs(shown_tokens - counted) <= error <= 0.5 * counted, (name, counted, shown_tokens, error)
        assert rows["proxied"]["talks_to"] == ["proxy"]
        assert {name: row["requests_in_flight"] for name, row in rows.items()} == STREAMS


def watched(bed: NginxBed, clients: dict[str, Counting]) -> list[str]:
    pids = [*bed.pids.all(), bed.front_pid, bed.worker_pid, *(client.process.pid for client in clients.values())]
    return [] if ALONE else [word for pid in pids for word in ("-p", str(pid))]


def rows_of(snapshot: dict[str, Any], clients: dict[str, Counting]) -> dict[str, dict[str, Any]]:
    rows = {each.get("pid"): each for each in snapshot["verdict"]["attribution"]}
    return {name: rows[c.process.pid] for name, c in clients.items() if c.process.pid in rows}


def started(snapshot: dict[str, Any]) -> float:
    return datetime.fromisoformat(snapshot["meta"]["started_at"].replace("Z", "+00:00")).timestamp()


def counted_to(clients: dict[str, Counting], at: float) -> bool:
    return all(client.lines[-1]["at"] > at for client in clients.values())


def shares(values: dict[str, float]) -> dict[str, float]:
    return {name: value / sum(values.values()) for name, value in values.items()}
