from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from freezeframe.agentd.collectors.sample_metrics import SAMPLE_METRICS
from freezeframe.agentd.host import Clock, Host, procfs, sock_diag
from freezeframe.agentd.jobs import Caps
from freezeframe.judge.model import Process
from tests.support.report import run, target, until
from tests.support.reports import KeptReport

pytestmark = pytest.mark.needs("root")

# A real server over a real exporter: each GET of /metrics counts 7 tokens more.
ENGINE = """
import socket, sys, uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
registry = CollectorRegistry()
tokens = Counter("sglang:generation_tokens", "t", ["tp_rank"], registry=registry)
Gauge("sglang:num_running_reqs", "r", ["tp_rank"], registry=registry).labels("0").set(29)
app = FastAPI()
asked = open(sys.argv[1], "w", buffering=1)
@app.middleware("http")
async def note(request, call_next):
    print(request.url.path, file=asked)
    return await call_next(request)
@app.get("/model_info")
async def info(): return {}
@app.get("/metrics")
async def metrics():
    tokens.labels("0").inc(7)
    return Response(generate_latest(registry), media_type="text/plain")
one = socket.create_server(("127.0.0.1", 0), backlog=2048)
bootstrap = socket.create_server(("127.0.0.1", 0), backlog=100)
class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(one.getsockname()[1], flush=True)
Server(uvicorn.Config(app, log_level="critical")).run([one])
"""

ROLE = Process.Role


@pytest.fixture
def engine(tmp_path: object) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    asked = f"{tmp_path}/asked"
    process = subprocess.Popen([sys.executable, "-c", ENGINE, asked], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, int(process.stdout.readline()), asked
    process.kill()
    process.communicate()


def sample(pid: int, product: str = "sglang", role: Process.Role = ROLE.ENGINE_HTTP, **options: object) -> KeptReport:
    return run(SAMPLE_METRICS, [target(pid, role=role, product=product)], **options)  # type: ignore[arg-type]


def endpoints(kept: KeptReport) -> dict[str, tuple[int, str]]:
    return {one.path: (one.status, one.error) for one in kept.snapshot().endpoints}


def test_an_engine_is_asked_what_is_passive_and_no_more(engine: tuple[subprocess.Popen[str], int, str]) -> None:
    process, port, asked = engine
    kept = sample(process.pid, window_ms=50.0)
    address = f"127.0.0.1:{port}"
    assert {(one.address, one.path, one.status, one.error, one.purpose) for one in kept.snapshot().endpoints} == {
        (address, "/model_info", 200, "", "liveness"),
        (address, "/metrics", 200, "", "metrics"),
    }
    values = {one.name: (one.value, one.delta, one.age_ms, one.pid, one.source) for one in kept.snapshot().metrics}
    source = f"http {address}/metrics"
    assert values["sglang:generation_tokens_total"] == (14.0, 7.0, None, process.pid, source)
    assert values["sglang:num_running_reqs"] == (29.0, 0.0, None, process.pid, source)
    with open(asked, encoding="ascii") as stream:
        assert stream.read().split() == ["/model_info", "/metrics", "/metrics"]
    assert kept.finished == [process.pid]
    assert (kept.misses, kept.partials) == ({}, [])


def test_one_look_has_no_delta(engine: tuple[subprocess.Popen[str], int, str]) -> None:
    values = {one.name: (one.value, one.delta) for one in sample(engine[0].pid).snapshot().metrics}
    assert values["sglang:generation_tokens_total"] == (7.0, None)


def test_a_cap_on_bytes_leaves_the_whole_lines(engine: tuple[subprocess.Popen[str], int, str]) -> None:
    kept = sample(engine[0].pid, caps=Caps(metric_bytes=150))
    assert endpoints(kept)["/metrics"] == (200, "answer cut after 150 bytes")
    assert [(one.name, one.value) for one in kept.snapshot().metrics] == [("sglang:generation_tokens_total", 7.0)]


def test_a_stopped_process_is_not_asked(engine: tuple[subprocess.Popen[str], int, str]) -> None:
    process, port, _ = engine
    process.send_signal(signal.SIGSTOP)
    until(lambda: procfs.stat(Host().proc(process.pid)).state == "T")
    kept = sample(process.pid)
    process.send_signal(signal.SIGCONT)
    why = "not asked: the process is stopped"
    assert endpoints(kept) == {"/model_info": (0, why), "/metrics": (0, why)}
    assert waiting(port) == 0


def waiting(port: int) -> int:
    (listener,) = [one for one in sock_diag.tcp_sockets() if one.state == "LISTEN" and one.local_port == port]
    return listener.receive_queue


def test_a_server_that_does_not_accept_is_left_with_one_connection_however_often_it_is_asked() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        port = listener.getsockname()[1]
        first = sample(os.getpid(), "vllm")
        assert endpoints(first) == {
            "/version": (0, "no answer"),
            "/metrics": (0, "not asked: /version was silent"),
            "/health": (0, "not asked: /version was silent"),
        }
        why = "not asked: an earlier question still waits in the accept queue"
        for _ in range(3):
            assert endpoints(sample(os.getpid(), "vllm")) == dict.fromkeys(
                ("/version", "/metrics", "/health"), (0, why)
            )
        assert waiting(port) == 1


def test_the_second_look_of_one_does_not_wait_for_another_that_is_silent(
    engine: tuple[subprocess.Popen[str], int, str],
) -> None:
    slept = []
    with socket.create_server(("127.0.0.1", 0), backlog=2048):
        begin = time.monotonic()
        kept = run(
            SAMPLE_METRICS,
            [
                target(os.getpid(), role=ROLE.ENGINE_HTTP, product="vllm"),
                target(engine[0].pid, role=ROLE.ENGINE_HTTP, product="sglang"),
            ],
            host=Host(clock=Clock(sleep=slept.append)),
            window_ms=10.0,
        )
        assert time.monotonic() - begin >= 1.0
    values = {one.name: one.delta for one in kept.snapshot().metrics}
    assert values["sglang:generation_tokens_total"] == 7.0
    assert slept == []
    assert kept.finished == [engine[0].pid, os.getpid()]


def test_what_may_speak_another_protocol_is_never_asked() -> None:
    """ZeroMQ takes an HTTP request for a message: with two listeners alike, neither is touched."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as one, socket.create_server(("127.0.0.1", 0)) as other:
        kept = sample(os.getpid(), "sglang")
        assert kept.snapshot().endpoints == ()
        (why,) = kept.misses.values()
        assert "which one speaks HTTP is unclear" in why
        assert [waiting(each.getsockname()[1]) for each in (one, other)] == [0, 0]


@pytest.mark.parametrize(("product", "api_first"), [("sglang-router", True), ("smg", False)])
def test_a_router_of_two_listeners(product: str, *, api_first: bool) -> None:
    """The API by its long accept queue, the exporter by what is left; of two alike the exporter was opened first."""
    heard: list[tuple[str, str]] = []

    def answer(listener: socket.socket, name: str, count: int) -> None:
        for _ in range(count):
            one, _ = listener.accept()
            with one:
                path = one.recv(65536).split()[1].decode()
                heard.append((name, path))
                body = b'{"workers":[{"url":"http://h:1","is_healthy":true,"load":3}]}' if path == "/workers" else b"ok"
                one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    backlogs = (4096, 128) if api_first else (128, 128)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=backlogs[0]) as one,
        socket.create_server(("127.0.0.1", 0), backlog=backlogs[1]) as two,
    ):
        api, exporter = (one, two) if api_first else (two, one)
        threads = [
            threading.Thread(target=answer, args=(api, "api", 3)),
            threading.Thread(target=answer, args=(exporter, "exporter", 1)),
        ]
        for thread in threads:
            thread.start()
        kept = sample(os.getpid(), product, ROLE.ROUTER)
        for thread in threads:
            thread.join(20)
    assert sorted(heard) == [
        ("api", "/liveness"), ("api", "/readiness"), ("api", "/workers"), ("exporter", "/metrics"),
    ]  # fmt: skip
    assert endpoints(kept)["/metrics"][0] == 200
    assert {(one.name, one.value) for one in kept.snapshot().metrics} == {
        ("router_worker_healthy", 1.0), ("router_worker_load", 3.0),
    }  # fmt: skip


def test_a_target_that_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    kept = run(SAMPLE_METRICS, [target(child.pid, role=ROLE.ENGINE_HTTP, product="sglang")])
    assert (kept.snapshot().endpoints, kept.misses, kept.finished) == ((), {}, [child.pid])
