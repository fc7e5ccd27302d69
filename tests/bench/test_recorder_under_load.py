"""What the recorder costs a router and a proxy under load, in CPU time per request."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from freezeframe.agentd.recorder.ledger import Ledger
from tests.bed.bed import Bed
from tests.bed.processes import free_ports
from tests.bed.routers import ROUTERS
from tests.bench.overhead import ROUND_S, armed, cpu_ns, interleaved, programs_timed, spend
from tests.bench.results import record
from tests.support.bpf_objects import run_ns

pytestmark = [pytest.mark.needs("root", "kernel", "e2e", "bench"), pytest.mark.timeout(1800)]

COST, BAR = "recorder's cost to the real router", 0.03


def test_the_cost_to_the_real_router(tmp_path: Path) -> None:
    """In the bed: its slow engines have the cores, and the router finds its caches cold for every event of a stream."""
    with Bed.start(wedge="none", clients=60, tokens=4, gap_s=0.0, regular=True) as bed:
        router = bed.pids.router

        def measure(ledger: Ledger | None) -> tuple[float, float]:
            spend(0.5, ledger)
            done, cpu, begin = bed.truth().completed, cpu_ns(router), time.monotonic()
            spend(ROUND_S, ledger)
            count = bed.truth().completed - done
            return (cpu_ns(router) - cpu) / count / 1000, count / (time.monotonic() - begin)

        grown, (low, high), cpu, how = interleaved(tmp_path, bed.pids.all(), measure)
        with programs_timed(), armed(tmp_path, bed.pids.all()) as ledger:
            spend(0.5, ledger)
            done, spent = bed.truth().completed, run_ns(os.getpid())
            spend(5 * ROUND_S, ledger)
            own = (run_ns(os.getpid()) - spent) / (bed.truth().completed - done) / 1000
    record(
        "the same in the programs alone, for all processes of the bed", f"{own:.1f} us per request", "-",
        f"{own / cpu:.1%} of what the router spends on one, by the kernel's own statistics; the router is one of eight "
        "processes",
    )  # fmt: skip
    record(f"{COST}, CPU time per request", f"{grown:+.1%} of {cpu:.0f} us", f"<= {BAR:.0%}", said(how, low, high))


NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")
CONFIGURATION = """
daemon off; master_process off; pid {folder}/pid; error_log stderr crit; events {{ worker_connections 256; }}
http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; keepalive_requests 100000000; default_type application/json;
  server {{ listen 127.0.0.1:{port}; location / {{ return 200 '{answer}'; }} }} }}
"""
# Keeps a request under way on each of 32 connections and tells how many were answered; every answer ends alike.
GENERATOR = """
import selectors, socket, sys, time
port, data, end = int(sys.argv[1]), sys.argv[2].encode(), sys.argv[3].encode()
wait = selectors.DefaultSelector()
for _ in range(32):
    sock = socket.create_connection(("127.0.0.1", port))
    wait.register(sock, selectors.EVENT_READ)
    sock.send(data)
count = 0
print("ready", flush=True)
told = time.monotonic()
while True:
    for key, _ in wait.select():
        if key.fileobj.recv(4096).endswith(end):
            key.fileobj.send(data)
            count += 1
    if time.monotonic() - told > 0.05:
        told = time.monotonic()
        sys.stdout.write(f"{count}\\n"); sys.stdout.flush()
"""
PROMPT = '{"text": "hello", "sampling_params": {"max_new_tokens": 4}}'
COMPLETION = '{"text": "hello there", "meta_info": {"completion_tokens": 4}}'
MODEL = '{"model_path": "m", "status": "ok"}'


@pytest.mark.skipif(NGINX is None, reason="no nginx here")
def test_the_cost_to_the_real_router_at_saturation(tmp_path: Path) -> None:
    """Its engine is an nginx that answers at once, so that the router is what the two cores are spent on."""
    router = ROUTERS["sglang-router"]
    port, metrics = free_ports(2)
    with contextlib.ExitStack() as stack:
        engine, engine_port = stack.enter_context(nginx(tmp_path, COMPLETION))
        command = [*router.start, "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
        log = stack.enter_context((tmp_path / "router.log").open("w"))
        command += ["--worker-urls", f"http://127.0.0.1:{engine_port}"]
        process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        stack.callback(process.kill)
        give_up = time.monotonic() + 60
        while not answers(f"http://127.0.0.1:{port}/generate"):
            assert time.monotonic() < give_up, (tmp_path / "router.log").read_text()[-2000:]
            time.sleep(0.1)
        request = "POST /generate HTTP/1.1\r\nHost: a\r\nX-Request-Id: 12345678\r\nContent-Type: application/json\r\n"
        load, count = stack.enter_context(generator(port, f"{request}Content-Length: {len(PROMPT)}\r\n\r\n{PROMPT}"))
        grown, (low, high), cpu, how = under_load(tmp_path, process, [engine, load], count)
    value = f"{grown:+.1%} of {cpu:.0f} us"
    record(f"{COST} at saturation, CPU time per request", value, f"<= {BAR:.0%}", said(how, low, high))


@pytest.mark.skipif(NGINX is None, reason="no nginx here")
def test_the_cost_to_nginx_with_a_tiny_answer(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        server, port = stack.enter_context(nginx(tmp_path, COMPLETION))
        request = "GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: 12345678\r\n\r\n"
        load, count = stack.enter_context(generator(port, request))
        grown, _, cpu, how = under_load(tmp_path, server, [load], count)
    record(
        "recorder's cost to nginx with a tiny answer, CPU time per request", f"{grown:+.1%} of {cpu:.1f} us",
        "worst case, told", how,
    )  # fmt: skip


def said(how: str, low: float, high: float) -> str:
    return f"{how}; the interval is {'above' if low > BAR else 'below' if high <= BAR else 'on both sides of'} the bar"


def under_load(
    folder: Path, of: subprocess.Popen[bytes], beside: list[subprocess.Popen[bytes]], count: Callable[[], int]
) -> tuple[float, tuple[float, float], float, str]:
    """What `interleaved` gives for one process, while so many requests are answered."""
    directory = folder / "private"
    directory.mkdir()

    def measure(ledger: Ledger | None) -> tuple[float, float]:
        spend(0.5, ledger)
        done, cpu, begin = count(), cpu_ns(of.pid), time.monotonic()
        spend(ROUND_S, ledger)
        made = count() - done
        return (cpu_ns(of.pid) - cpu) / made / 1000, made / (time.monotonic() - begin)

    return interleaved(directory, [each.pid for each in (of, *beside)], measure)


@contextlib.contextmanager
def nginx(folder: Path, answer: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """One process of nginx that says the same to all; with its port."""
    assert NGINX is not None
    (port,) = free_ports(1)
    (folder / "conf").write_text(CONFIGURATION.format(folder=folder, port=port, answer=answer))
    with subprocess.Popen([NGINX, "-c", str(folder / "conf"), "-p", str(folder)]) as server:
        try:
            while not answers(f"http://127.0.0.1:{port}/"):
                time.sleep(0.05)
            yield server, port
        finally:
            server.terminate()


@contextlib.contextmanager
def generator(port: int, request: str) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], int]]]:
    """Requests without a pause, and what gives how many were answered by now."""
    command = [sys.executable, "-c", GENERATOR, str(port), request, COMPLETION[-8:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as load:
        stdout = load.stdout
        assert stdout is not None

        def count() -> int:
            """The last number that it told."""
            lines = b""
            while not lines.endswith(b"\n") or not lines:
                select.select([stdout], [], [])
                lines = os.read(stdout.fileno(), 1 << 20)
                assert lines, "the generator has ended"
            return int(lines.split()[-1])

        try:
            assert stdout.readline() == b"ready\n"
            yield load, count
        finally:
            load.kill()


def answers(url: str) -> bool:
    headers = {"content-type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, PROMPT.encode(), headers), timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
