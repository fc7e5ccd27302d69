"""Sockets and endpoints of processes in network namespaces of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from freezeframe.agentd.collectors import snapshot_sockets
from freezeframe.agentd.collectors.sample_metrics import SAMPLE_METRICS
from freezeframe.agentd.collectors.snapshot_sockets import SNAPSHOT_SOCKETS
from freezeframe.agentd.host import conntrack
from freezeframe.judge.correlate.connections import find_listeners, join_connections
from freezeframe.judge.correlate.facts import Connection, Debt
from freezeframe.judge.correlate.roles import serving_processes
from freezeframe.judge.model import Process, Socket
from tests.support.network import Network, Place, network, running
from tests.support.report import run, target
from tests.support.reports import KeptReport

pytestmark = pytest.mark.needs("root")

SERVER = """
import socket, sys
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])), backlog=64)
print("up", flush=True)
kept = []
for _ in range(int(sys.argv[2])):
    one, _ = listener.accept()
    kept.append(one)
    one.recv(101, socket.MSG_WAITALL)
    print("read", flush=True)
sys.stdin.read()
"""
CLIENT = """
import socket, sys
one = socket.create_connection((sys.argv[1], int(sys.argv[2])))
one.sendall(b"r" * 101)
print(one.getsockname()[1], flush=True)
sys.stdin.read()
"""
PORT = 8000


@pytest.fixture(autouse=True)
def not_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector leaves out the agent's own processes, which here are those of the test."""
    monkeypatch.setattr(snapshot_sockets, "_agent_pids", lambda _proc: set())


@dataclass(frozen=True, kw_only=True)
class Pair:
    net: Network
    client: int
    client_port: int
    server: int


@contextmanager
def pair(*, accept: int = 1, published: int = 0, masquerade: bool = False) -> Iterator[Pair]:
    """A client and a server in namespaces of their own, and a request that the server has read or not accepted."""
    with ExitStack() as stack:
        net = stack.enter_context(network("client", "server", bridged=not published))
        client_place, server_place = net.places["client"], net.places["server"]
        server = stack.enter_context(running(server_place, SERVER, str(PORT), str(accept)))
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        address, port = server_place.address, PORT
        if published:
            net.publish(published, server_place, PORT, masquerade=masquerade)
            address, port = net.switch.address, published
        client = stack.enter_context(running(client_place, CLIENT, address, str(port)))
        assert client.stdout is not None
        client_port = int(client.stdout.readline())
        if accept:
            assert server.stdout.readline() == "read\n"
        yield Pair(net=net, client=client.pid, client_port=client_port, server=server.pid)


def ends(report: KeptReport) -> tuple[Socket, Socket]:
    """The client's end and the server's."""
    found = [one for one in report.snapshot().sockets if one.family == "tcp" and one.remote]
    (outer,) = [one for one in found if not one.accepted]
    (inner,) = [one for one in found if one.accepted]
    return outer, inner


def joined(report: KeptReport, server: int) -> tuple[Connection, ...]:
    """As the judge joins them."""
    sockets = report.snapshot().sockets
    processes = {server: Process(pid=server, role=Process.Role.ENGINE_HTTP)}
    return join_connections(sockets, processes, find_listeners(sockets, processes), 0.0)


def namespace(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


@pytest.mark.parametrize("looked_at", ["client", "server"])
def test_both_ends_are_joined_across_namespaces(looked_at: str) -> None:
    with pair() as one:
        report = run(SNAPSHOT_SOCKETS, [target(getattr(one, looked_at))])
        outer, inner = ends(report)
        assert (outer.pid, outer.peer_pid, outer.netns) == (one.client, one.server, namespace(one.client))
        assert (inner.pid, inner.peer_pid, inner.netns) == (one.server, one.client, namespace(one.server))
        assert (outer.peer_inode, inner.peer_inode) == (inner.inode, outer.inode)
        assert (outer.bytes_out, inner.bytes_in) == (101.0, 101.0)
        (connection,) = joined(report, one.server)
    assert (connection.client_pid, connection.server_pid, connection.debt) == (one.client, one.server, Debt.ANSWER)
    assert report.partials == []


@pytest.mark.parametrize("masquerade", [False, True])
@pytest.mark.parametrize("looked_at", ["client", "server"])
@pytest.mark.needs("nat")
def test_a_published_port_is_seen_through(looked_at: str, masquerade: bool) -> None:
    with pair(published=30000, masquerade=masquerade) as one:
        report = run(SNAPSHOT_SOCKETS, [target(getattr(one, looked_at))])
        outer, inner = ends(report)
        places = one.net.places
        assert outer.remote == f"{one.net.switch.address}:30000"
        assert inner.local == f"{places['server'].address}:{PORT}"
        assert (inner.remote.rpartition(":")[0] == places["client"].address) is not masquerade
        assert (outer.pid, outer.peer_pid, outer.peer_inode) == (one.client, one.server, inner.inode)
        assert (inner.pid, inner.peer_pid, inner.peer_inode) == (one.server, one.client, outer.inode)
        (connection,) = joined(report, one.server)
        assert (connection.client_pid, connection.server_pid, connection.debt) == (one.client, one.server, Debt.ANSWER)
        router = Process(pid=one.server, title="sglang::router")
        found = serving_processes((router, Process(pid=one.client, comm="python")), report.snapshot().sockets)
        assert [(each.pid, each.role) for each in found] == [
            (one.server, Process.Role.ROUTER), (one.client, Process.Role.CLIENT),
        ]  # fmt: skip


@pytest.mark.needs("nat")
def test_a_published_port_behind_which_nobody_accepts() -> None:
    with pair(accept=0, published=30000) as one:
        report = run(SNAPSHOT_SOCKETS, [target(one.server)])
        outer, inner = ends(report)
        assert (inner.pid, inner.inode, inner.peer_pid, inner.peer_inode) == (None, 0, one.client, outer.inode)
        (connection,) = joined(report, one.server)
    assert (connection.client_pid, connection.server_pid, connection.debt) == (one.client, one.server, Debt.UNACCEPTED)


@pytest.mark.needs("nat")
def test_without_the_table_of_connections_their_other_ends_are_told_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "this kernel has no /proc/net/nf_conntrack"
    monkeypatch.setattr(
        conntrack, "translations", lambda _proc, _pid: conntrack.Translations(other_end={}, missing=said)
    )
    with pair(published=30000) as one:
        report = run(SNAPSHOT_SOCKETS, [target(one.server)])
    (inner,) = [each for each in report.snapshot().sockets if each.accepted]
    assert inner.peer_pid is None
    assert report.partials == [(f"the other end of 1 connections may be behind a published port: {said}", "")]


WITHOUT = """
import json, os, sys
from freezeframe.agentd.collectors import snapshot_sockets
from freezeframe.agentd.collectors.{module} import {name}
from freezeframe.judge.model import Process
from tests.support.report import run, target
snapshot_sockets._agent_pids = lambda _proc: set()
report = run({name}, [target(int(pid), role=Process.Role.ENGINE_HTTP) for pid in sys.argv[1:]])
sockets = [(one.pid, one.peer_pid, one.local, one.last_in_age_ms) for one in report.snapshot().sockets if one.remote]
print(json.dumps([report.partials, sockets]))
"""


def without_sys_admin(module: str, name: str, *pids: int) -> list[object]:
    code = WITHOUT.format(module=module, name=name)
    done = subprocess.run(
        ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", code, *map(str, pids)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[object] = json.loads(done.stdout)
    return found


def test_without_the_capability_the_ends_are_joined_and_what_is_missing_is_named() -> None:
    with pair() as one:
        partials, sockets = without_sys_admin("snapshot_sockets", "SNAPSHOT_SOCKETS", one.client, one.server)
    details, hints = zip(*partials, strict=True)  # type: ignore[misc]
    assert set(hints) == {"grant CAP_SYS_ADMIN"}
    assert any(f"of pid {one.server}: no ages, bytes and unix sockets" in detail for detail in details)
    assert sorted((pid, peer, age) for pid, peer, _, age in sockets) == sorted(  # type: ignore[misc, attr-defined]
        [(one.client, one.server, None), (one.server, one.client, None)]
    )


HTTP = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"vllm:num_requests_running 7\\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        print(self.client_address[0], file=sys.stderr, flush=True)
    def log_message(self, *_): pass
server = HTTPServer((sys.argv[1], 8000), Handler)
print("up", flush=True)
import threading
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""


@pytest.mark.parametrize("address", ["", "own"])
def test_metrics_are_asked_for_inside_the_namespace(address: str) -> None:
    with network("engine") as net:
        place: Place = net.places["engine"]
        listens = place.address if address else "0.0.0.0"
        with running(place, HTTP, listens) as engine:
            assert engine.stdout is not None
            assert engine.stdout.readline() == "up\n"
            report = run(SAMPLE_METRICS, [target(engine.pid, role=Process.Role.ENGINE_HTTP)])
            partials, _ = without_sys_admin("sample_metrics", "SAMPLE_METRICS", engine.pid)
            why = "asking the kernel for its sockets: Operation not permitted"
            detail = f"endpoints in the network namespace of pid {engine.pid} are not asked: {why}"
            assert partials == [[detail, "grant CAP_SYS_ADMIN"]]
    (metric,) = report.snapshot().metrics
    assert (metric.name, metric.value, metric.pid) == ("vllm:num_requests_running", 7.0, engine.pid)
    assert report.partials == []
