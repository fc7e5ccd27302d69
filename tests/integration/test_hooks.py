"""Hooks in real workers: a command, a webhook, and what goes wrong with them."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from freezeframe.agentd.audit import Audit
from freezeframe.agentd.capture import CaptureSpec
from freezeframe.agentd.captures import Captured
from freezeframe.agentd.collectors import run_hook
from freezeframe.agentd.collectors.contract import UnavailableError
from freezeframe.agentd.config import Hook
from freezeframe.agentd.host import Host
from freezeframe.agentd.jobs import Job
from freezeframe.agentd.logs import make_logger
from freezeframe.agentd.schedules.hooks import Hooks
from freezeframe.agentd.schedules.schedule import Schedule
from freezeframe.judge import file
from freezeframe.judge.model import Triggered
from tests.support.filled import canned_snapshot
from tests.support.launching import real_workers
from tests.support.waiting import eventually

SPEC = CaptureSpec(
    schedule="stuck",
    trigger="trigger stuck-for=5s",
    triggered=Triggered(condition="stuck-for=5s", look=1, looks=3, values=(("longest_wait_s", "6"),)),
)
CAPTURED = Captured(snapshot_id="gpu-07-1", data=file.write([canned_snapshot("gpu-07-1")], "test"), digest=b"")
EVENT = {
    "host": "gpu-07",
    "snapshot_id": "gpu-07-1",
    "schedule": "stuck",
    "trigger": "stuck-for=5s",
    "look": 1,
    "looks": 3,
    "values": {"longest_wait_s": "6"},
    "verdict": "ROUTER_HOLDS",
    "hop": "router",
    "summary": "the router holds 30 requests",
    "get": "freezeframe get gpu-07-1",
}


class _Doing:
    def doing(self, what: str) -> None:
        assert what.startswith("running hook ")


def run(hook: Hook, event: str = "{}") -> str:
    """What is told of a hook; empty when it went well."""
    try:
        run_hook.of([hook]).collect(Job(job_id=1, collector="run_hook", hook=hook.name, event=event), Host(), _Doing())  # type: ignore[arg-type]
    except UnavailableError as error:
        return str(error)
    return ""


def script(folder: Path, text: str) -> tuple[str, ...]:
    path = folder / "hook.py"
    path.write_text(text)
    return sys.executable, str(path)


@contextmanager
def listening(status: int, headers: dict[str, str] | None = None) -> Iterator[tuple[str, list[Any]]]:
    came: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came.append((self.path, self.headers["Content-Type"], json.loads(body)))
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/services/T0KEN", came
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_command_gets_the_event_and_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")
    out = tmp_path / "out"
    text = f"import os, sys; open({str(out)!r}, 'w').write(sys.stdin.read() + repr(sorted(os.environ)) + os.getcwd())"
    assert run(Hook(name="page", command=script(tmp_path, text)), '{"look": 1}') == ""
    assert out.read_text() in ("{\"look\": 1}['LANG', 'PATH']/", "{\"look\": 1}['LANG', 'LC_CTYPE', 'PATH']/")


def test_what_goes_wrong_with_a_command(tmp_path: Path) -> None:
    failing = script(tmp_path, "import sys; sys.exit('no \\x1b[2J pager')")
    assert run(Hook(name="page", command=failing)) == "hook page: it ended with 1: no \\x1b[2J pager"
    assert run(Hook(name="page", command=("/nowhere",))) == "hook page: starting /nowhere: No such file or directory"
    hanging = script(tmp_path, "import time; time.sleep(60)")
    assert run(Hook(name="page", command=hanging, timeout_s=0.3)) == "hook page: not done after 0.3 s"


def test_a_webhook_and_what_goes_wrong_with_it() -> None:
    with listening(200) as (url, came):
        assert run(Hook(name="chat", url=url), '{"look": 1}') == ""
        assert came == [("/services/T0KEN", "application/json", {"look": 1})]
    with listening(404) as (url, _):
        assert run(Hook(name="chat", url=url)) == "hook chat: its address answers 404"
    with listening(200) as (other, came), listening(302, {"Location": other}) as (url, _):
        assert run(Hook(name="chat", url=url)) == "hook chat: its address answers 302"
        assert came == []
    # Nothing listens there any more; the address is not told.
    assert run(Hook(name="chat", url=url)) == "hook chat: asking its address: Connection refused"


async def test_a_hook_runs_in_a_worker_and_is_audited(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = script(tmp_path, f"import sys; open({str(out)!r}, 'w').write(sys.stdin.read())")
    config = tmp_path / "agentd.toml"
    quoted = ", ".join(json.dumps(each) for each in command)
    config.write_text(f'[[hooks]]\nname = "page"\ncommand = [{quoted}]\n')
    log = io.StringIO()
    async with real_workers("-m", "freezeframe.agentd.launcher", str(tmp_path), str(config)) as workers:
        hooks = Hooks(
            hooks=(
                Hook(name="page", url="http://x/"),
                Hook(name="gone", url="http://x/"),
                Hook(name="b", schedules=("b",)),
            ),
            workers=workers,
            audit=Audit(make_logger(log)),
            host="gpu-07",
        )
        hooks.tell(Schedule(name="stuck"), SPEC, CAPTURED)
        await eventually(lambda: not hooks._running)
    assert json.loads(out.read_text()) == EVENT
    lines = {line["targets"][0]: line for line in map(json.loads, log.getvalue().splitlines())}
    assert set(lines) == {"hook page", "hook gone"}
    assert (lines["hook page"]["who"], lines["hook page"]["rpc"]) == ("schedule stuck", "Hook")
    assert (lines["hook page"]["outcome"], lines["hook page"]["detail"]) == ("OK", "")
    assert lines["hook page"]["targets"] == ["hook page", "snapshot_id gpu-07-1"]
    assert lines["hook gone"]["outcome"] == "FAILED"
    assert lines["hook gone"]["detail"] == "hook gone: the configuration file has none of that name"


async def test_what_a_hook_forked_ends_with_it(tmp_path: Path) -> None:
    forking = f"cd {tmp_path}; sleep 900 & echo $! > stays; setsid sleep 901 & echo $! > leaves; wait"
    command = ("/bin/sh", "-c", forking)
    config = tmp_path / "agentd.toml"
    quoted = ", ".join(json.dumps(each) for each in command)
    config.write_text(f'[[hooks]]\nname = "page"\ncommand = [{quoted}]\ntimeout_s = 3\n')
    log = io.StringIO()
    async with real_workers("-m", "freezeframe.agentd.launcher", str(tmp_path), str(config)) as workers:
        audit = Audit(make_logger(log))
        # The worker has longer than the command.
        hooks = Hooks(hooks=(Hook(name="page", url="http://x/", timeout_s=60),), workers=workers, audit=audit, host="h")
        hooks.tell(Schedule(name="stuck"), SPEC, CAPTURED)
        await eventually(lambda: not hooks._running, 60)
        assert json.loads(log.getvalue())["detail"] == "hook page: not done after 3 s"
        stays, leaves = (int((tmp_path / name).read_text()) for name in ("stays", "leaves"))
        await eventually(lambda: not Path(f"/proc/{stays}").exists())
    # Out of reach by its own doing.
    assert Path(f"/proc/{leaves}").exists()
    os.kill(leaves, signal.SIGKILL)
