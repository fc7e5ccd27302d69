from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from freezeframe.agentd.collectors import snapshot_sockets
from freezeframe.agentd.collectors.snapshot_sockets import collect
from freezeframe.agentd.host import Clock, Host
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import Socket
from tests.support.reports import KeptReport

pytestmark = pytest.mark.needs("root")

# A server that accepts `accept` connections, reads `read` bytes of each, answers `answer` bytes, then does nothing.
SERVER = """
import socket, sys
accept, read, answer = map(int, sys.argv[1:4])
listener = socket.create_server(("127.0.0.1", 0), backlog=16)
print(listener.getsockname()[1], flush=True)
kept = []
for _ in range(accept):
    one, _ = listener.accept()
    kept.append(one)
    got = 0
    while got < read:
        got += len(one.recv(read - got))
    one.sendall(b"x" * answer)
    print("served", flush=True)
sys.stdin.read()
"""

TCP_CLIENT = """
import socket, sys
one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
sys.stdin.read()
"""

UNIX_CLIENT = """
import socket, sys
one = socket.socket(socket.AF_UNIX)
one.connect(sys.argv[1])
one.sendall(b"x" * 19)
print("up", flush=True)
sys.stdin.read()
"""


@dataclass
class Server:
    process: subprocess.Popen[str]
    port: int

    def served(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "served\n"


def serve(accept: int, read: int, answer: int) -> Server:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(accept), str(read), str(answer)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return Server(process, int(process.stdout.readline()))


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    one = serve(*request.param)
    yield one
    one.process.communicate()


NORMAL = Clock()


@pytest.fixture(autouse=True)
def not_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector leaves the agent's own processes out; here it runs in the process that plays the peer."""
    monkeypatch.setattr(snapshot_sockets, "_agent_pids", lambda _proc: set())


def look(*pids: int, window_ms: float = 0.0, clock: Clock = NORMAL) -> KeptReport:
    report = KeptReport()
    targets = tuple(Target(pid=pid, start_ticks=1) for pid in pids)
    collect(
        Job(job_id=1, collector="snapshot_sockets", targets=targets, window_ms=window_ms), Host(clock=clock), report
    )
    return report


def tcp(report: KeptReport) -> list[Socket]:
    return [one for one in report.snapshot().sockets if one.family == "tcp"]


@pytest.mark.parametrize("server", [(1, 101, 0)], indirect=True)
def test_a_request_that_was_read_and_not_answered(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"r" * 101)
        server.served()
        time.sleep(0.05)  # an age to see
        records = tcp(look(server.process.pid))
        (listener,) = [one for one in records if one.state == "LISTEN"]
        (inner,) = [one for one in records if one.local == f"127.0.0.1:{server.port}" and one.remote]
        (outer,) = [one for one in records if one.remote == f"127.0.0.1:{server.port}"]
        assert (listener.pid, listener.backlog, listener.backlog_limit) == (server.process.pid, 0, 16)
        assert (inner.pid, inner.peer_pid, inner.peer_fd) == (server.process.pid, os.getpid(), client.fileno())
        assert (inner.bytes_in, inner.bytes_out, inner.recv_queue, inner.accepted) == (101.0, 0.0, 0.0, True)
        assert inner.last_out_age_ms is None
        assert inner.last_in_age_ms is not None
        assert 40 <= inner.last_in_age_ms <= 5000
        assert (outer.pid, outer.fd, outer.peer_pid) == (os.getpid(), client.fileno(), server.process.pid)
        assert (outer.bytes_in, outer.accepted, outer.last_in_age_ms) == (0.0, False, None)
        assert outer.inode == inner.peer_inode
        assert inner.inode == outer.peer_inode
        assert inner.lasting


@pytest.mark.parametrize("server", [(0, 0, 0)], indirect=True)
def test_connections_that_nobody_accepts(server: Server) -> None:
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(7)]
    for client in clients:
        client.sendall(b"r" * 53)
    records = tcp(look(server.process.pid))
    (listener,) = [one for one in records if one.state == "LISTEN"]
    waiting = [one for one in records if one.local == f"127.0.0.1:{server.port}" and one.remote]
    assert listener.backlog == 7
    assert [(one.pid, one.inode, one.recv_queue, one.peer_pid) for one in waiting] == [(None, 0, 53.0, os.getpid())] * 7
    for client in clients:
        client.close()


@pytest.mark.parametrize("server", [(1, 11, 13)], indirect=True)
def test_what_moved_between_the_looks(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"r" * 11)
        server.served()
        assert len(client.recv(13, socket.MSG_WAITALL)) == 13

        def second_request(seconds: float) -> None:
            assert seconds == 0.5
            client.sendall(b"r" * 17)
            time.sleep(0.05)

        report = look(server.process.pid, window_ms=500.0, clock=Clock(sleep=second_request))
        (inner,) = [one for one in tcp(report) if one.local == f"127.0.0.1:{server.port}" and one.remote]
        assert (inner.bytes_in, inner.bytes_in_delta, inner.bytes_out_delta) == (28.0, 17.0, 0.0)
        assert (inner.recv_queue, inner.recv_queue_after, inner.lasting) == (0.0, 17.0, True)
        assert report.finished == [server.process.pid]


@pytest.mark.parametrize("server", [(1, 5, 0)], indirect=True)
def test_half_closed_by_the_client(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"r" * 5)
        server.served()
        client.shutdown(socket.SHUT_WR)
        time.sleep(0.05)
        states = {one.local: one.state for one in tcp(look(server.process.pid)) if one.remote}
        assert states[f"127.0.0.1:{server.port}"] == "CLOSE-WAIT"
        assert sorted(states.values()) == ["CLOSE-WAIT", "FIN-WAIT-2"]


@pytest.mark.parametrize("server", [(1, 0, 0)], indirect=True)
def test_a_gateway_that_listens_brings_its_own_clients(server: Server) -> None:
    """This process is a gateway here: it listens, has a client of its own, and is a client of the target."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = subprocess.Popen(
        [sys.executable, "-c", TCP_CLIENT, str(listener.getsockname()[1])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdout is not None
    assert client.stdout.readline() == "up\n"
    inner, _ = listener.accept()
    with inner, listener, socket.create_connection(("127.0.0.1", server.port)):
        pids = {one.pid for one in tcp(look(server.process.pid))}
        assert {server.process.pid, os.getpid(), client.pid} <= pids
    client.communicate()


def test_unix_pairs_name_both_owners(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = str(tmp_path_factory.mktemp("u") / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(9)
    child = subprocess.Popen(
        [sys.executable, "-c", UNIX_CLIENT, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    inner, _ = listener.accept()
    with inner, listener:
        records = [one for one in look(os.getpid()).snapshot().sockets if one.family == "unix" and one.local == path]
        (waiting,) = [one for one in records if one.state == "LISTEN"]
        (accepted,) = [one for one in records if one.state == "ESTAB"]
        assert (waiting.backlog, waiting.backlog_limit) == (0, 9)
        assert (accepted.pid, accepted.fd, accepted.peer_pid, accepted.recv_queue) == (
            os.getpid(), inner.fileno(), child.pid, 19.0,
        )  # fmt: skip
    child.communicate()


def test_a_pid_that_is_gone_has_no_sockets_and_no_error() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    report = look(child.pid)
    assert report.snapshot().sockets == ()
    assert report.misses == {}


def test_many_connections_are_all_seen() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=600)
    pairs: list[socket.socket] = []
    accepting = threading.Thread(target=lambda: pairs.extend(listener.accept()[0] for _ in range(500)))
    accepting.start()
    clients = [socket.create_connection(listener.getsockname()) for _ in range(500)]
    accepting.join()
    begin = time.monotonic()
    records = [one for one in tcp(look(os.getpid())) if one.accepted]
    print(f"1,000 sockets: {1000 * (time.monotonic() - begin):.0f} ms")
    assert len(records) == 500
    assert {one.peer_pid for one in records} == {os.getpid()}
    for one in (*pairs, *clients, listener):
        one.close()
