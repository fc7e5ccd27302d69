from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import grpc
import pytest

from freezeframe.client import connection, errors, statuses
from freezeframe.client.connection import Received, connect
from freezeframe.client.hosts import Target
from freezeframe.v1 import service_pb2
from tests.support.canned_agent import Script, canned_agent, done_of, step
from tests.support.story import story_bytes

Reason = service_pb2.ErrorInfo.Reason
STATUSES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


def target(path: Path | str) -> Target:
    return Target(path=str(path), name="gpu-07")


def capture(path: Path, deadline_s: float = 10.0) -> Received:
    with connect(target(path)) as agent:
        return agent.capture(service_pb2.CaptureRequest(), deadline_s).receive()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ff-") as name:
        yield Path(name)


def test_a_capture_comes_whole_with_its_progress() -> None:
    data = os.urandom(3 * 1024 * 1024 + 7)
    script = Script(data=data, steps=[step("snapshot_sockets"), step("snapshot_sockets", "OK")])
    steps: list[service_pb2.Progress] = []
    with canned_agent(script) as path, connect(target(path)) as agent:
        received = agent.capture(service_pb2.CaptureRequest(note="x"), 10.0).receive(steps.append)
    assert received.data == data
    assert received.done == done_of(data)
    assert steps == script.steps
    assert script.requests == [service_pb2.CaptureRequest(note="x")]


def test_each_reason_has_an_error() -> None:
    assert set(statuses.REASONS) == set(Reason.values()) - {Reason.UNSPECIFIED}


def test_each_status_has_an_error() -> None:
    assert set(statuses.STATUSES) == set(STATUSES)


@pytest.mark.parametrize("reason", [value for value in Reason.values() if value != Reason.UNSPECIFIED])
def test_a_reason_comes_through_with_detail_and_hint(reason: Reason.ValueType) -> None:
    info = service_pb2.ErrorInfo(reason=reason, detail="the détail", hint="do this")
    script = Script(refusal=(grpc.StatusCode.ABORTED, "", info))
    with canned_agent(script) as path, pytest.raises(errors.ClientError) as caught:
        capture(path)
    assert type(caught.value) is statuses.REASONS[reason]
    assert str(caught.value) == "capturing gpu-07: the détail"
    assert caught.value.hint == "do this"


@pytest.mark.parametrize("code", STATUSES)
def test_a_status_without_reason_is_an_error_with_a_sentence(code: grpc.StatusCode) -> None:
    with canned_agent(Script(refusal=(code, "x", None))) as path, pytest.raises(errors.ClientError) as caught:
        capture(path)
    kind, sentence, hint = statuses.STATUSES[code]
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"capturing gpu-07: {sentence}")
    assert caught.value.hint == hint


def test_a_reason_of_a_newer_agent_falls_back_on_the_status() -> None:
    info = service_pb2.ErrorInfo.FromString(b"\x08\x63\x12\x03new")
    script = Script(refusal=(grpc.StatusCode.PERMISSION_DENIED, "", info))
    with canned_agent(script) as path, pytest.raises(errors.RefusedError, match="capturing gpu-07: new"):
        capture(path)


def test_an_agent_that_does_not_know_the_service_is_of_another_version() -> None:
    with (
        canned_agent(Script(), knows_service=False) as path,
        pytest.raises(errors.AgentVersionError, match="of different versions") as caught,
    ):
        capture(path)
    assert caught.value.exit_code == 3
    assert "pip install --upgrade freezeframe" in caught.value.hint


def test_no_socket(folder: Path) -> None:
    with pytest.raises(errors.AgentNotThereError, match=r"no agent listens on .*/capture\.sock"):
        capture(folder / "capture.sock")


def test_a_socket_that_a_dead_agent_left(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / "capture.sock"))
    with pytest.raises(errors.AgentNotThereError, match="no agent listens on") as caught:
        capture(folder / "capture.sock")
    assert "freezeframe-agentd" in caught.value.hint


def test_a_file_that_is_no_socket(folder: Path) -> None:
    (folder / "capture.sock").write_text("x")
    with pytest.raises(errors.NotAnAgentError, match="is no socket"):
        capture(folder / "capture.sock")


def test_an_agent_that_hangs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(folder / "capture.sock"))
        silent.listen(1)
        with pytest.raises(errors.AgentNotThereError, match="takes connections, and nothing answers on it"):
            capture(folder / "capture.sock")
        # Its accept queue is full now.
        with socket.socket(socket.AF_UNIX) as second:
            second.connect(str(folder / "capture.sock"))
            with pytest.raises(errors.AgentNotThereError, match="takes connections, and nothing answers on it"):
                capture(folder / "capture.sock")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0"])
def test_something_else_that_answers(folder: Path, answer: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(folder / "capture.sock"))
        other.listen(1)

        def serve() -> None:
            with other.accept()[0] as peer:
                peer.recv(4096)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(errors.NotAnAgentError, match="is no freezeframe agent"):
            capture(folder / "capture.sock")
        thread.join()


@pytest.mark.needs("root")
def test_a_socket_of_somebody_else_is_refused_unless_trusted() -> None:
    script = Script(data=story_bytes())
    with canned_agent(script) as path:
        os.chown(path, 65534, 65534)
        with pytest.raises(errors.SocketOwnerError, match="neither to root nor to you") as caught:
            capture(path)
        assert "--trust-socket-owner" in caught.value.hint
        assert script.requests == []
        with connect(target(path), trust_owner=True) as agent:
            agent.capture(service_pb2.CaptureRequest(), 10.0).receive()


@pytest.mark.needs("root")
@pytest.mark.parametrize(("uid", "trusted"), [(998, True), (1234, False)])
def test_a_socket_of_the_account_of_the_service_is_trusted(
    monkeypatch: pytest.MonkeyPatch, uid: int, trusted: bool
) -> None:
    """An account of that name that root did not make for a service is somebody's."""
    account = pwd.struct_passwd(("freezeframe", "x", uid, uid, "", "/", "/usr/sbin/nologin"))
    monkeypatch.setattr(pwd, "getpwnam", {"freezeframe": account}.__getitem__)
    with canned_agent(Script(data=story_bytes())) as path:
        os.chown(path, uid, uid)
        with nullcontext() if trusted else pytest.raises(errors.SocketOwnerError):
            capture(path)


AS_NOBODY = """
import sys
from freezeframe.client import connection, errors
from freezeframe.client.hosts import Target
import os
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    with connection.connect(Target(path=sys.argv[1], name="gpu-07")):
        print("connected")
except errors.ClientError as error:
    print(type(error).__name__, error.exit_code); print(error); print(error.hint)
"""


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("gid", "sentence", "hint"),
    [
        (0, "it belongs to root alone", "run it with sudo"),
        (1, "it belongs to the group daemon", "sudo usermod -aG daemon nobody, then log in again"),
    ],
)
def test_a_socket_without_permission_says_which_group_may(gid: int, sentence: str, hint: str) -> None:
    with canned_agent(Script()) as path:
        os.chown(path, 0, gid)
        path.chmod(0o660)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(path)], capture_output=True, text=True, check=True, timeout=60
        )
    kind, said, next_step = done.stdout.splitlines()
    assert kind == "SocketPermissionError 3"
    assert said == f"connecting to gpu-07: you may not open {path}: {sentence}"
    assert next_step.startswith(hint) or f"join it: {hint}" in next_step


def test_an_answer_that_stops_without_its_end() -> None:
    def cut(_request: object, _context: object) -> Iterator[service_pb2.CaptureEvent]:
        yield service_pb2.CaptureEvent(chunk=service_pb2.Chunk(data=b"12345"))

    with (
        canned_agent(Script(capture=cut)) as path,
        pytest.raises(errors.AgentDiedError, match="the agent's answer stops after 5 bytes"),
    ):
        capture(path)


@pytest.mark.parametrize(
    "done",
    [
        service_pb2.CaptureDone(bytes=4, digest=done_of(b"data").digest),
        service_pb2.CaptureDone(bytes=5, digest=done_of(b"other").digest),
        service_pb2.CaptureDone(),
    ],
)
def test_bytes_that_changed_on_the_way(done: service_pb2.CaptureDone) -> None:
    with (
        canned_agent(Script(data=b"chang", done=done)) as path,
        pytest.raises(errors.DigestError, match="5 bytes came, and they are not the") as caught,
    ):
        capture(path)
    assert caught.value.exit_code == 5


def test_an_agent_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MARGIN_S", 0.1)
    script = Script()

    def wait(_request: object, _context: object) -> Iterator[service_pb2.CaptureEvent]:
        script.release.wait(60)
        yield from ()

    script.capture = wait
    with canned_agent(script) as path, pytest.raises(errors.DeadlineError, match="no answer in time") as caught:
        capture(path, deadline_s=0.2)
    assert "--deadline" in caught.value.hint


DYING = """
import os, sys, threading
from tests.support.canned_agent import Script, canned_agent, step
from freezeframe.v1 import service_pb2
def capture(request, context):
    yield service_pb2.CaptureEvent(progress=step("snapshot_sockets"))
    yield service_pb2.CaptureEvent(chunk=service_pb2.Chunk(data=b"x" * 1000))
    threading.Event().wait()
with canned_agent(Script(capture=capture)) as path:
    print(path, flush=True)
    sys.stdin.read()
"""


def test_an_agent_killed_in_the_middle_of_its_answer() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DYING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        with connect(target(path)) as agent, pytest.raises(errors.AgentDiedError) as caught:
            agent.capture(service_pb2.CaptureRequest(), 30.0).receive(lambda _: os.kill(process.pid, signal.SIGKILL))
    path.unlink()
    path.parent.rmdir()
    assert str(caught.value) == "capturing gpu-07: the agent ended in the middle of its answer"
    assert "try again" in caught.value.hint


def all_errors(kind: type[errors.ClientError]) -> Iterator[type[errors.ClientError]]:
    for each in kind.__subclasses__():
        yield each
        yield from all_errors(each)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    for each in all_errors(errors.ClientError):
        assert f"── {each.__name__} " in (errors.__doc__ or ""), each
        assert each.exit_code in {2, 3, 4, 5}


_INTERRUPTED = """
import sys
from grpc._cython import cygrpc
from freezeframe.client.connection import connect
from freezeframe.client.hosts import Target
from freezeframe.v1 import service_pb2


def interrupt(_thread):
    raise ENDS  # where a signal may strike


cygrpc.ForkManagedThread.start = interrupt
try:
    with connect(Target(path=sys.argv[1], name="gpu-07")) as agent:
        agent.capture(service_pb2.CaptureRequest(), 10.0).receive()
except ENDS:
    print("interrupted")
"""


@pytest.mark.parametrize("ends", ["KeyboardInterrupt", "SystemExit"])
def test_a_signal_between_a_call_and_the_thread_that_serves_it_ends_the_client(ends: str) -> None:
    """A real channel: closing it would wait for ever for the call that nobody serves."""
    program = _INTERRUPTED.replace("ENDS", ends)
    with canned_agent(Script(data=b"x")) as path:
        command = [sys.executable, "-c", program, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
