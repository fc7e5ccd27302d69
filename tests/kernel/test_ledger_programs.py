"""Each protocol case with programs as people run them, with exact counts."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from freezeframe.agentd.recorder.exchange import Flight
from freezeframe.agentd.recorder.ledger import Ledger
from tests.support.children import PROGRAMS, child

pytestmark = pytest.mark.needs("kernel", "e2e")


@contextlib.contextmanager
def serving(*command: str) -> Iterator[tuple[int, int]]:
    """Give pid and port of a program that prints its port."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield process.pid, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def app(request: pytest.FixtureRequest, ledger: Ledger) -> Iterator[tuple[int, int]]:
    with serving(sys.executable, str(PROGRAMS / "http_app.py"), request.param) as served:
        yield served


def eventually(find: Callable[[], object], timeout_s: float = 20.0) -> None:
    give_up = time.monotonic() + timeout_s
    while not find():
        assert time.monotonic() < give_up, "it did not become true in time"
        time.sleep(0.01)


def counts(ledger: Ledger, pid: int) -> tuple[int, int]:
    watch = ledger.watched()[pid]
    return watch.requests, watch.responses


def curl(*arguments: str) -> tuple[int, str]:
    process = subprocess.Popen(["curl", "-sS", *arguments], stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=60)
    return process.pid, out


@contextlib.contextmanager
def curling(*arguments: str) -> Iterator[int]:
    process = subprocess.Popen(["curl", "-sSN", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait(10)


def of(ledger: Ledger, pid: int) -> list[Flight]:
    return ledger.in_flight([pid])


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def raw(port: int, *pieces: bytes, pause_s: float = 0.0) -> socket.socket:
    """Send these pieces, each by itself."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for piece in pieces:
        sock.sendall(piece)
        time.sleep(pause_s)  # each piece is read by itself
    return sock


@pytest.mark.parametrize(("path", "count"), [("fast", 37), ("chunked", 23)])
def test_keep_alive_with_many_requests(ledger: Ledger, app: tuple[int, int], path: str, count: int) -> None:
    pid, port = app
    client, _ = curl(f"http://127.0.0.1:{port}/{path}?n=[1-{count}]")
    assert counts(ledger, pid) == (count, count)
    assert counts(ledger, client) == (count, count)
    assert of(ledger, pid) == []


def test_a_stream_is_open_until_its_last_chunk_and_a_stalled_one_stays(ledger: Ledger, app: tuple[int, int]) -> None:
    pid, port = app
    with (
        curling("-XPOST", f"http://127.0.0.1:{port}/stall", "-H", "X-Request-Id: stalled") as stalled,
        curling("-XPOST", f"http://127.0.0.1:{port}/stream", "-H", "X-Request-Id: moving") as moving,
    ):
        eventually(lambda: sum(each.streaming for each in of(ledger, pid)) == 2)
        eventually(lambda: all(each.in_bytes > 100 for each in of(ledger, stalled) + of(ledger, moving)))
        first = {each.request_id: each for each in of(ledger, pid)}
        eventually(lambda: {e.request_id: e for e in of(ledger, pid)}["moving"].out_bytes > first["moving"].out_bytes)
        now = {each.request_id: each for each in of(ledger, pid)}
        assert now["stalled"].last_out_ns == first["stalled"].last_out_ns
        assert {(each.method, each.path, each.status, each.streaming) for each in now.values()} == {
            ("POST", "/stall", 200, True), ("POST", "/stream", 200, True),
        }  # fmt: skip
    # Both clients are gone: the server closes.
    eventually(lambda: of(ledger, pid) == [])


def test_thirty_hang_and_their_ages_are_right(ledger: Ledger, app: tuple[int, int]) -> None:
    pid, port = app
    with contextlib.ExitStack() as stack:
        began = {}
        for number in range(30):
            head = (
                f"POST /hang HTTP/1.1\r\nHost: a\r\nX-Request-Id: h{number}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
            )
            began[f"h{number}"] = time.monotonic_ns()
            stack.enter_context(raw(port, head))
        eventually(lambda: len(of(ledger, pid)) == 30)
        flights = {each.request_id: each for each in of(ledger, pid)}
        assert set(flights) == set(began)
        assert all(began[name] < each.began_ns < time.monotonic_ns() for name, each in flights.items())
        mine = {each.request_id: each for each in of(ledger, os.getpid()) if each.path == "/hang"}
        assert set(mine) == set(began)
        assert all(0 <= each.began_ns - began[name] < 50_000_000 for name, each in mine.items())


def test_expect_100_continue(ledger: Ledger, app: tuple[int, int], tmp_path: Path) -> None:
    pid, port = app
    body = tmp_path / "body"
    body.write_bytes(b"b" * 3_000_000)
    client, out = curl("-H", "Expect: 100-continue", "--data-binary", f"@{body}", f"http://127.0.0.1:{port}/echo")
    assert out == "3000000"
    assert counts(ledger, pid) == (1, 1)
    assert counts(ledger, client) == (1, 1)
    with curling("-H", "Expect: 100-continue", "--data-binary", f"@{body}", f"http://127.0.0.1:{port}/hang"):
        eventually(lambda: [each.in_bytes > 3_000_000 and not each.arriving for each in of(ledger, pid)] == [True])
        (flight,) = of(ledger, pid)
        assert (flight.path, flight.status, flight.streaming) == ("/hang", 0, False)


def test_pipelined_requests_are_each_owed(ledger: Ledger, app: tuple[int, int]) -> None:
    pid, port = app
    fast = b"GET /fast HTTP/1.1\r\nHost: a\r\n\r\n"
    hang = b"POST /hang HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    with raw(port, fast + fast + fast) as sock:
        eventually(lambda: counts(ledger, pid)[1] == 3)
        assert of(ledger, pid) == []
        # The second of two in one read hangs behind the answer to the first.
        sock.sendall(fast + hang)
        eventually(lambda: counts(ledger, pid)[1] == 4)
        eventually(lambda: len(of(ledger, pid)) == 1)


def test_a_body_that_looks_like_a_head_is_a_body(ledger: Ledger, app: tuple[int, int]) -> None:
    pid, port = app
    body = b"POST /v1/x HTTP/1.1\r\n\r\n"
    head = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (2 * len(body))
    with raw(port, head, body, body, pause_s=0.05) as sock:
        sock.settimeout(10)
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        assert counts(ledger, pid) == (1, 1)
        assert of(ledger, pid) == []


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_head_in_pieces(ledger: Ledger, app: tuple[int, int], size: int) -> None:
    pid, port = app
    head = b"POST /hang?k=v HTTP/1.1\r\nHost: a\r\nX-Request-Id: in-pieces\r\nContent-Length: 2\r\n\r\n{}"
    # The method itself is read at once: a byte of it alone tells nothing yet.
    pieces = [head[:12], *(head[i : i + size] for i in range(12, len(head), size))]
    with raw(port, *pieces, pause_s=0.002):
        eventually(
            lambda: [(e.path, e.request_id, e.arriving) for e in of(ledger, pid)] == [("/hang", "in-pieces", False)]
        )


@pytest.mark.parametrize(("filler", "found"), [(1500, "late"), (3000, "")])
def test_an_id_behind_long_headers(ledger: Ledger, app: tuple[int, int], filler: int, found: str) -> None:
    pid, port = app
    head = b"POST /hang HTTP/1.1\r\nHost: a\r\nX-Filler: %b\r\nX-Request-Id: late\r\nContent-Length: 2\r\n\r\n{}"
    with raw(port, head % (b"f" * filler)):
        eventually(lambda: [(e.method, e.path, e.request_id) for e in of(ledger, pid)] == [("POST", "/hang", found)])


def test_a_request_that_is_still_coming_says_so(ledger: Ledger, app: tuple[int, int]) -> None:
    pid, port = app
    with raw(port, b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf") as sock:
        eventually(lambda: [each.arriving for each in of(ledger, pid)] == [True])
        sock.sendall(b"theres")
        eventually(lambda: of(ledger, pid) == [])
        assert counts(ledger, pid) == (1, 1)


def test_websocket(ledger: Ledger, tmp_path: Path) -> None:
    code = (
        "import aiohttp, asyncio, socket\n"
        "from aiohttp import web\n"
        "async def serve(request):\n"
        "    ws = web.WebSocketResponse()\n"
        "    await ws.prepare(request)\n"
        "    async for message in ws:\n"
        "        await ws.send_str(message.data)\n"
        "    return ws\n"
        "app = web.Application()\n"
        "app.router.add_get('/ws', serve)\n"
        "sock = socket.create_server(('127.0.0.1', 0))\n"
        "print(sock.getsockname()[1], flush=True)\n"
        "web.run_app(app, sock=sock, print=None)\n"
    )
    head = (
        b"GET /ws?token=1 HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with serving(sys.executable, "-c", code) as (pid, port), raw(port, head) as sock:
        eventually(lambda: [each.protocol for each in of(ledger, pid)] == ["websocket"])
        sock.sendall(b"\x81\x85\0\0\0\0hello")
        sock.settimeout(10)
        data = b""
        while not data.endswith(b"hello"):
            data += sock.recv(4096)
        (flight,) = of(ledger, pid)
        assert (flight.method, flight.path, flight.status, flight.streaming) == ("GET", "/ws", 101, True)
        assert counts(ledger, pid) == (1, 1)


def test_tls_is_a_connection_and_says_so(ledger: Ledger, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert", tmp_path / "key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=a",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    server = (sys.executable, str(PROGRAMS / "http_app.py"), "asyncio", str(certificate), str(key))
    with serving(*server) as (pid, port):
        _, out = curl("-k", f"https://127.0.0.1:{port}/fast")
        assert out == "hello"
        # On a connection that has carried one already: session tickets may come behind the first request.
        url = f"https://127.0.0.1:{port}"
        with curling("-k", f"{url}/fast", "--next", "-k", "--data", "{}", f"{url}/hang") as client:
            eventually(lambda: [(e.protocol, e.method, e.side) for e in of(ledger, pid)] == [("tls", "", "server")])
            eventually(lambda: [(e.protocol, e.method, e.side) for e in of(ledger, client)] == [("tls", "", "client")])


def test_grpc_streams(ledger: Ledger) -> None:
    with serving(sys.executable, str(PROGRAMS / "grpc_server.py")) as (pid, port):
        client = child(sys.executable, str(PROGRAMS / "grpc_client.py"), str(port), "50", "7")
        with client as process:
            eventually(lambda: counts(ledger, pid)[0] == 57)
            assert counts(ledger, pid) == (57, 50)
            eventually(lambda: counts(ledger, process.pid) == (57, 50))
            for owner, side in ((pid, "server"), (process.pid, "client")):
                flights = of(ledger, owner)
                assert [(each.side, each.protocol, each.streaming) for each in flights] == [(side, "h2", False)] * 7
        eventually(lambda: of(ledger, pid) == [])


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here")
def test_node(ledger: Ledger, app: tuple[int, int]) -> None:
    pid, port = app
    with child("node", str(PROGRAMS / "node_client.js"), str(port), "19") as process:
        eventually(lambda: counts(ledger, pid) == (20, 19))
        assert counts(ledger, process.pid) == (20, 19)
        expected = [("POST", "/hang", "node-/hang")]
        eventually(lambda: [(e.method, e.path, e.request_id) for e in of(ledger, pid)] == expected)
        assert [(e.method, e.path, e.request_id) for e in of(ledger, process.pid)] == expected


@pytest.mark.needs("go")
def test_go(ledger: Ledger, app: tuple[int, int], tmp_path: Path) -> None:
    pid, port = app
    subprocess.run(["go", "build", "-o", tmp_path / "client", PROGRAMS / "go_client.go"], check=True)
    with child(str(tmp_path / "client"), str(port), "29") as process:
        # The last one hangs; the one before it goes on.
        eventually(lambda: counts(ledger, pid) == (31, 30))
        eventually(lambda: counts(ledger, process.pid) == (31, 30))
        expected = {("POST", "/stream", "go-/stream", 200, True), ("POST", "/hang", "go-/hang", 0, False)}
        for each in (pid, process.pid):
            eventually(lambda each=each: len(of(ledger, each)) == 2)
            found = {(e.method, e.path, e.request_id, e.status, e.streaming) for e in of(ledger, each)}
            assert found == expected


NGINX = """
daemon off; master_process on; worker_processes 1; pid {folder}/pid; error_log stderr crit;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream app {{ server 127.0.0.1:{port}; keepalive 8; }}
  server {{
    listen 127.0.0.1:{listen};
    location / {{ proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
    location /tiny {{ return 200 "hello\\n"; }}
    location /file {{ root {folder}; }}
  }}
  server {{ listen 127.0.0.1:{h2} http2; location / {{ return 200 "hello\\n"; }} }}
}}
"""


@pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx here")
def test_nginx_as_server_and_as_proxy(ledger: Ledger, app: tuple[int, int], tmp_path: Path) -> None:
    engine, port = app
    with contextlib.ExitStack() as held:
        listen, h2 = (held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2))
    (tmp_path / "file").write_bytes(b"z" * 200_000)
    (tmp_path / "conf").write_text(NGINX.format(folder=tmp_path, port=port, listen=listen, h2=h2))
    tmp_path.chmod(0o755)
    command = ["nginx", "-c", str(tmp_path / "conf"), "-p", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as master:
        try:
            children = Path(f"/proc/{master.pid}/task/{master.pid}/children")
            eventually(lambda: listens(listen) and children.read_text())
            (worker,) = map(int, children.read_text().split())
            curl(f"http://127.0.0.1:{listen}/tiny?[1-40]")
            assert counts(ledger, worker) == (40, 40)
            curl(f"http://127.0.0.1:{listen}/file?[1-5]")
            assert counts(ledger, worker) == (45, 45)
            curl(f"http://127.0.0.1:{listen}/fast?[1-11]")
            assert counts(ledger, worker) == (67, 67)
            assert counts(ledger, engine) == (11, 11)
            for number in range(1, 4):
                curl("--http2-prior-knowledge", f"http://127.0.0.1:{h2}/x")
                assert counts(ledger, worker) == (67 + number, 67 + number)
            assert of(ledger, worker) == []
            with curling("--data", "{}", "-H", "x-request-id: through", f"http://127.0.0.1:{listen}/hang"):
                eventually(lambda: len(of(ledger, worker)) == 2)
                sides = {(e.side, e.method, e.path, e.request_id) for e in of(ledger, worker)}
                assert sides == {("server", "POST", "/hang", "through"), ("client", "POST", "/hang", "through")}
                assert [each.request_id for each in of(ledger, engine)] == ["through"]
        finally:
            master.terminate()
            master.wait(10)
