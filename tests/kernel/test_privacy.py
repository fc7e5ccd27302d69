"""Secrets and prompts in every place and every split: none is left anywhere two seconds after the last request."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from freezeframe.agentd.bpf.maps import Map
from tests.kernel.test_recorder import armed_agent, recorder_of, snap
from tests.support.daemon import Daemon

pytestmark = [pytest.mark.needs("kernel"), pytest.mark.timeout(240)]

SECRET = "sEcReT-pLaNtEd-7731"
PROMPT = "tell me of the pLaNtEd garden 7731"


def request(number: int) -> bytes:
    body = f'{{"messages": [{{"content": "{PROMPT} {number}"}}]}}'.encode()
    return (
        f"POST /v1/chat/completions?api_key={SECRET}-query HTTP/1.1\r\nHost: h\r\n"
        f"Authorization: Bearer {SECRET}-bearer\r\nCookie: session={SECRET}-cookie\r\nX-Api-Key: {SECRET}-header\r\n"
        f"X-Request-Id: private-{number}\r\nUser-Agent: {SECRET}-agent\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


ANSWER = (
    f"HTTP/1.1 200 OK\r\nSet-Cookie: {SECRET}-set\r\nContent-Length: 40\r\n\r\n".encode()
    + PROMPT.encode().ljust(40)[:40]
)


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with client, server:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield client, server


def say(client: socket.socket, server: socket.socket, number: int, cut: int) -> None:
    """One request, sent and read in two pieces, and its answer."""
    data = request(number)
    for piece in (data[:cut], data[cut:]):
        if piece:
            client.sendall(piece)
            left = len(piece)
            while left:
                left -= len(server.recv(left))
    server.sendall(ANSWER)
    left = len(ANSWER)
    while left:
        left -= len(client.recv(left))


def memory_of(pid: int) -> Iterator[bytes]:
    """Every readable byte of a process, file mappings left out."""
    with open(f"/proc/{pid}/maps", encoding="ascii") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            begin, end, mode, name = re.match(r"(\w+)-(\w+) (\S+) \S+ \S+ \S+\s*(.*)", line).groups()
            if not mode.startswith("r") or name.startswith("[v"):
                continue
            with contextlib.suppress(OSError):
                memory.seek(int(begin, 16))
                yield memory.read(int(end, 16) - int(begin, 16))


def open_maps(pid: int) -> list[Map]:
    """The maps that a process holds, as descriptors of ours."""
    found = []
    pidfd = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fdinfo"):
            with contextlib.suppress(OSError):
                info = Path(f"/proc/{pid}/fdinfo/{name}").read_text()
                if "map_type:" not in info:
                    continue
                values = dict(re.findall(r"(\w+):\s+(\d+)", info))
                fd = syscall_pidfd_getfd(pidfd, int(name))
                found.append(
                    Map(
                        name=values["map_type"],
                        fd=fd,
                        key_size=int(values["key_size"]),
                        value_size=int(values["value_size"]),
                        max_entries=int(values["max_entries"]),
                    )
                )
    finally:
        os.close(pidfd)
    return found


def syscall_pidfd_getfd(pidfd: int, fd: int) -> int:
    got = ctypes.CDLL(None, use_errno=True).syscall(438, pidfd, fd, 0)
    assert got >= 0
    return int(got)


def dump(maps: list[Map]) -> bytes:
    parts = []
    for each in maps:
        kind = int(each.name)
        if kind in (1, 9):
            parts += [key + value for key, value in each.items()]
        elif kind == 2:
            for index in range(each.max_entries):
                parts.append(each.get(struct.pack("=I", index)) or b"")
        elif kind == 6:
            per_cpu = Map(
                **{
                    **{f: getattr(each, f) for f in each.__slots__},
                    "cpus": os.cpu_count() or 1,
                    "value_size": (each.value_size + 7) // 8 * 8,
                }
            )
            parts += [per_cpu.get(struct.pack("=I", index)) or b"" for index in range(each.max_entries)]
    return b"".join(parts)


NEEDLES = (
    b"pLaNtEd",
    # Ends of bodies and of pieces of them.
    b"garden 7",
    b"EcReT-pL",
    SECRET.encode(),
    PROMPT.encode()[:16],
    base64.b64encode(SECRET.encode())[:12],
    "pLaNtEd".encode("utf-16-le"),
)


def found_in(data: bytes) -> list[bytes]:
    return [needle for needle in NEEDLES if needle in data]


def test_nothing_but_what_is_listed_survives(tmp_path: Path) -> None:
    with armed_agent() as agent, connected() as (client, server):
        whole = len(request(0))
        number = 0
        # Every split of the head and into the body; some with a pause so that a sweep comes between.
        for cut in range(1, whole, 3):
            say(client, server, number, cut)
            number += 1
        for cut in range(12, whole, 29):
            data = request(number)
            client.sendall(data[:cut])
            server.recv(cut)
            time.sleep(0.3)  # a sweep of the recorder comes between the halves
            client.sendall(data[cut:])
            while server.recv(4096, socket.MSG_DONTWAIT) and not wait_for_more(server):
                pass
            server.sendall(ANSWER)
            client.recv(4096)
            number += 1
        # One that stays in flight, with its head in two.
        hung = request(99_999)
        client.sendall(hung[:100])
        server.recv(100)
        client.sendall(hung[100:])
        server.recv(4096)
        last = time.monotonic()
        document = snap(agent, tmp_path, "--window", "0", "-p", str(os.getpid()))
        mine = [each for each in document["requests"] if each.get("pid") == os.getpid()]
        assert {each["request_id"] for each in mine} == {"private-99999"}
        assert {each["path"] for each in mine} == {"/v1/chat/completions"}
        look(agent, tmp_path, last)


def wait_for_more(server: socket.socket) -> bool:
    """Whether nothing more is to be read."""
    try:
        server.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
    except BlockingIOError:
        return True
    return False


def look(agent: Daemon, tmp_path: Path, last: float) -> None:
    """In the file, in the log, in the maps and in the memory of the recorder."""
    show = [sys.executable, "-m", "freezeframe.client", "show", str(tmp_path / "x.ffz"), "--output", "json"]
    shown = subprocess.run(show, capture_output=True, check=True).stdout
    assert b"private-99999" in shown
    assert found_in(shown) == []
    time.sleep(max(0.0, last + 2.0 - time.monotonic()))  # what is promised is two seconds
    assert found_in(agent.log.read_bytes()) == []
    pid = recorder_of(agent)
    maps = open_maps(pid)
    try:
        content = dump(maps)
        assert len(content) > 10_000_000
        assert found_in(content) == []
    finally:
        for each in maps:
            os.close(each.fd)
    read = 0
    for data in memory_of(pid):
        read += len(data)
        assert found_in(data) == []
    assert read > 10_000_000
