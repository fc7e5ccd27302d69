from __future__ import annotations

import ctypes
import os
import select
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
from freezeframe.agentd.host.http_probe import Prober, Question
from freezeframe.agentd.host.namespaces import parse_table
from freezeframe.agentd.host.sock_diag import TcpSocket, tcp_sockets
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import Socket
from tests.support.report import until
from tests.support.reports import KeptReport

pytestmark = pytest.mark.needs("root")

LOCAL_PATH = f"/usr/sbin:/sbin:{os.environ.get('PATH', '')}"

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

TWO_CONNECTIONS = """
import socket, sys
kept = [socket.create_connection(("127.0.0.1", int(port))) for port in sys.argv[1:]]
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
        assert inner.opened_age_ms is not None
        assert 40 <= inner.opened_age_ms <= 5000
        assert (inner.last_ack_age_ms, inner.unacked, inner.retransmits_total) == (inner.last_in_age_ms, 0, 0)


@pytest.mark.parametrize("server", [(1, 101, 103)], indirect=True)
def test_bytes_and_queues_of_an_answer_that_is_not_read(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"r" * 101)
        server.served()
        select.select([client], [], [], 20)
        records = tcp(look(server.process.pid))
        (inner,) = [one for one in records if one.accepted]
        (outer,) = [one for one in records if one.remote == f"127.0.0.1:{server.port}"]
        assert (outer.bytes_in, outer.bytes_out, outer.recv_queue, outer.send_queue) == (103.0, 101.0, 103.0, 0.0)
        assert (inner.bytes_in, inner.bytes_out, inner.recv_queue, inner.send_queue) == (101.0, 103.0, 0.0, 0.0)
        assert outer.opened_age_ms is None
        assert outer.last_in_age_ms is not None
        assert outer.last_out_age_ms is not None


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

        report = look(server.process.pid, window_ms=500.0, clock=Clock(sleep=second_request, monotonic=lambda: 7.0))
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
        until(lambda: {one.state for one in tcp(look(server.process.pid))} >= {"CLOSE-WAIT", "FIN-WAIT-2"})
        ends = [one for one in tcp(look(server.process.pid)) if one.remote]
        (inner,) = [one for one in ends if one.accepted]
        (outer,) = [one for one in ends if not one.accepted]
        assert (inner.state, outer.state) == ("CLOSE-WAIT", "FIN-WAIT-2")
        # The kernel counts the FIN as a byte received, unread and acknowledged (ss shows Recv-Q 1); it is none.
        assert (inner.bytes_in, inner.bytes_out, inner.recv_queue, inner.send_queue) == (5.0, 0.0, 0.0, 0.0)
        assert (outer.bytes_in, outer.bytes_out, outer.recv_queue, outer.send_queue) == (0.0, 5.0, 0.0, 0.0)


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


@pytest.mark.parametrize("server", [(1, 0, 0)], indirect=True)
def test_of_a_client_only_its_connections_to_the_target_are_brought(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        client = subprocess.Popen(
            [sys.executable, "-c", TWO_CONNECTIONS, str(server.port), str(elsewhere.getsockname()[1])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert client.stdout is not None
        assert client.stdout.readline() == "up\n"
        server.served()
        remotes = [one.remote for one in tcp(look(server.process.pid)) if one.pid == client.pid]
        client.communicate()
    assert remotes == [f"127.0.0.1:{server.port}"]


def test_a_connection_accepted_between_the_looks_is_one_connection() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    client = subprocess.Popen(
        [sys.executable, "-c", TCP_CLIENT, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "up\n"
    kept: list[socket.socket] = []
    with listener:
        accepting = Clock(sleep=lambda _seconds: kept.append(listener.accept()[0]))
        records = tcp(look(os.getpid(), window_ms=10.0, clock=accepting))
        (inner,) = [one for one in records if one.accepted]
        assert (inner.pid, inner.fd, inner.lasting) == (os.getpid(), kept[0].fileno(), True)
        (waiting,) = [one for one in records if one.state == "LISTEN" and one.local == f"127.0.0.1:{port}"]
        assert (waiting.backlog, waiting.recv_queue_after) == (1, 0.0)
    client.communicate()
    kept[0].close()


@pytest.mark.parametrize("server", [(1, 7, 0)], indirect=True)
def test_what_is_new_at_the_second_look_carried_all_its_bytes_in_the_window(server: Server) -> None:
    clients: list[socket.socket] = []

    def connect(_seconds: float) -> None:
        clients.append(socket.create_connection(("127.0.0.1", server.port)))
        clients[0].sendall(b"r" * 7)
        server.served()

    records = tcp(look(server.process.pid, window_ms=10.0, clock=Clock(sleep=connect)))
    (inner,) = [one for one in records if one.accepted]
    assert (inner.bytes_in_delta, inner.bytes_out_delta, inner.lasting) == (7.0, 0.0, False)
    assert (inner.pid, inner.peer_pid) == (server.process.pid, os.getpid())
    clients[0].close()


@pytest.mark.parametrize("server", [(0, 0, 0)], indirect=True)
def test_questions_of_the_agent_are_left_out_of_the_backlog(server: Server) -> None:
    prober = Prober(timeout_s=0.1)
    prober.ask(Question(host="127.0.0.1", port=server.port, path="/"))
    ((_, answer),) = list(prober.answers())
    assert answer.error == "no answer"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        records = tcp(look(server.process.pid))
        (listener,) = [one for one in records if one.state == "LISTEN"]
        assert (listener.backlog, listener.recv_queue) == (1, 1.0)
        name, port = client.getsockname()
        assert [one.remote for one in records if one.accepted] == [f"{name}:{port}"]


def test_a_namespace_of_its_own_and_retransmissions() -> None:
    lossy = subprocess.Popen(
        ["unshare", "--net", sys.executable, "tests/programs/lossy_loopback.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": LOCAL_PATH},
    )  # fmt: skip
    assert lossy.stdout is not None
    port = int(lossy.stdout.readline())

    def outer() -> Socket:
        (one,) = [one for one in tcp(look(lossy.pid)) if one.remote == f"127.0.0.1:{port}"]
        return one

    until(lambda: (outer().retransmits_now or 0) >= 2)
    one = outer()
    (inner,) = [each for each in tcp(look(lossy.pid)) if each.accepted]
    lossy.communicate()
    assert (one.pid, one.peer_pid, one.peer_fd) == (lossy.pid, lossy.pid, inner.fd)
    assert one.netns == inner.netns != os.stat("/proc/self/ns/net").st_ino
    assert (one.bytes_in, one.bytes_out, one.send_queue, one.unacked) == (11.0, 101.0, 53.0, 1)
    assert (inner.bytes_in, inner.bytes_out, inner.recv_queue) == (101.0, 11.0, 0.0)
    assert one.retransmits_total is not None
    assert one.retransmits_total >= 2
    assert one.last_ack_age_ms is not None
    assert one.last_out_age_ms is not None
    assert one.last_ack_age_ms > one.last_out_age_ms


COARSE = """
import sys
from freezeframe.agentd.host import namespaces
tables = namespaces.sockets_of("/proc", int(sys.argv[1]))
print(tables.coarse)
for one in tables.tcp:
    print(one.state, one.local, one.remote, one.send_queue, one.info)
"""


def test_another_namespace_without_the_capability_to_enter_it() -> None:
    lossy = subprocess.Popen(
        ["unshare", "--net", sys.executable, "tests/programs/lossy_loopback.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": LOCAL_PATH},
    )  # fmt: skip
    assert lossy.stdout is not None
    port = int(lossy.stdout.readline())

    def drop_sys_admin() -> None:
        pr_capbset_drop, cap_sys_admin = 24, 21
        assert ctypes.CDLL(None).prctl(pr_capbset_drop, cap_sys_admin, 0, 0, 0) == 0

    done = subprocess.run(
        [sys.executable, "-c", COARSE, str(lossy.pid)],
        capture_output=True, text=True, check=True, preexec_fn=drop_sys_admin,
    )  # fmt: skip
    lossy.communicate()
    why, *lines = done.stdout.splitlines()
    assert why.endswith("Operation not permitted")
    assert f"LISTEN 127.0.0.1:{port}  0 None" in lines
    (outer,) = [line for line in lines if f" 127.0.0.1:{port} " in line and line.startswith("ESTAB 127.0.0.1:")
                and not line.startswith(f"ESTAB 127.0.0.1:{port} ")]  # fmt: skip
    assert outer.endswith(f" 127.0.0.1:{port} 53 None")


def test_the_proc_tables_say_the_same_as_netlink_as_far_as_they_go() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as other,
        socket.create_connection(listener.getsockname()) as client,
        socket.create_connection(other.getsockname()[:2]) as client6,
        socket.create_connection(listener.getsockname()) as half,
    ):
        client.sendall(b"r" * 17)
        half.shutdown(socket.SHUT_WR)
        mine = {one.getsockname()[1] for one in (listener, other, client, client6, half)}

        def seen(sockets: list[TcpSocket]) -> set[tuple[object, ...]]:
            return {
                (
                    one.state,
                    one.local,
                    one.remote,
                    one.receive_queue,
                    one.state != "LISTEN" and one.send_queue,
                    one.inode,
                )
                for one in sockets
                if one.local_port in mine
            }

        until(lambda: {one.state for one in tcp_sockets() if one.local_port in mine} >= {"FIN-WAIT-2"})
        tables = [open(f"/proc/self/net/{name}", "rb") for name in ("tcp", "tcp6")]  # noqa: SIM115
        parsed = [one for table in tables for one in parse_table(table.read())]
        for table in tables:
            table.close()
        assert seen(parsed) == seen(tcp_sockets())
        assert {one[0] for one in seen(parsed)} == {"LISTEN", "ESTAB", "CLOSE-WAIT", "FIN-WAIT-2"}
        assert len(seen(parsed)) == 8


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
        ends = look(os.getpid()).snapshot().sockets
        (outer,) = [one for one in ends if one.family == "unix" and one.pid == child.pid and one.remote == path]
        assert (outer.peer_pid, outer.peer_fd, outer.recv_queue) == (os.getpid(), inner.fileno(), 0.0)
        # Bytes, as the other end counts them; the kernel tells the sender 768, the memory that they take.
        assert outer.send_queue == 19.0
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
