"""The client as a process of its own: terminal, pipes, signals, locale, what it imports."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from freezeframe.judge import file
from freezeframe.v1 import file_pb2, service_pb2, snapshot_pb2
from tests.support.canned_agent import Script, canned_agent, step
from tests.support.story import story_bytes

CLIENT = (sys.executable, "-m", "freezeframe.client")
NAME = "gpu-07-20260102T030405.678Z.ffz"
HEAVY = ("grpc", "rich", "google.protobuf", "zstandard", "freezeframe.judge", "freezeframe.v1", "tomllib", "tomli")
TIMEOUT_S = 60


@pytest.fixture
def script() -> Script:
    return Script(data=story_bytes(), steps=[step("snapshot_sockets"), step("snapshot_sockets", "OK")])


@pytest.fixture
def address(script: Script) -> Iterator[str]:
    with canned_agent(script) as path:
        yield f"unix:{path}"


def client(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*CLIENT, *arguments], cwd=cwd, env={**os.environ, **environment}, capture_output=True, check=False,
        timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\ntry:\n {code}\nexcept SystemExit: pass\nprint(*sys.modules, sep='\\n')"],
        capture_output=True, text=True, check=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    return set(done.stdout.splitlines())


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["snap", "--help"], ["completion", "zsh"]])
def test_what_needs_no_agent_imports_nothing_heavy(arguments: list[str]) -> None:
    loaded = modules_after(f"from freezeframe.client.cli import main; sys.argv[1:] = {arguments!r}; main()")
    assert "freezeframe.client.cli.snap" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("command", ["snap", "list", "get x", "rm x", "where x", "doctor"])
def test_no_command_imports_the_agent(command: str, address: str, tmp_path: Path) -> None:
    arguments = [*command.split(), address]
    loaded = modules_after(
        f"import os; os.chdir({str(tmp_path)!r}); from freezeframe.client.cli import main;"
        f" sys.argv[1:] = {arguments!r}; main()"
    )
    assert "freezeframe.client.connection" in loaded
    assert not [name for name in loaded if name.startswith("freezeframe.agentd")]
    # No terminal: no live table.
    assert "rich" not in loaded


@pytest.mark.parametrize("arguments", [["show", "a.ffz", "verdict", "hops"], ["diff", "a.ffz", "a.ffz"]])
def test_a_pipe_with_columns_set_is_as_wide(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "a.ffz").write_bytes(story_bytes())
    narrow = client(*arguments, cwd=tmp_path, COLUMNS="40", LC_ALL="C.UTF-8")
    assert narrow.returncode == 0
    # A word is never broken: it must still be copied.
    wide = [line for line in narrow.stdout.decode().splitlines() if len(line) > 40 and len(line.split()) > 1]
    assert wide == []


def test_a_pipe_is_not_cut_at_the_usual_width(tmp_path: Path) -> None:
    """What runs others, as pytest does, tells them such a width."""
    (tmp_path / "a.ffz").write_bytes(story_bytes())
    plain = client("show", "a.ffz", "processes", "sockets", cwd=tmp_path, LC_ALL="C.UTF-8")
    told = client("show", "a.ffz", "processes", "sockets", cwd=tmp_path, LC_ALL="C.UTF-8", COLUMNS="80")
    assert told.stdout == plain.stdout
    assert max(map(len, plain.stdout.decode().splitlines())) > 80


@pytest.mark.parametrize("columns", ["0", "-5", "x", "\u00b2", "9" * 5000])
def test_columns_that_are_no_width_do_not_count(tmp_path: Path, columns: str) -> None:
    (tmp_path / "a.ffz").write_bytes(story_bytes())
    plain = client("show", "a.ffz", cwd=tmp_path, LC_ALL="C.UTF-8")
    told = client("show", "a.ffz", cwd=tmp_path, LC_ALL="C.UTF-8", COLUMNS=columns)
    assert (told.returncode, told.stdout) == (0, plain.stdout)


def test_show_needs_no_grpc(tmp_path: Path) -> None:
    (tmp_path / "x.ffz").write_bytes(story_bytes())
    loaded = modules_after(
        f"from freezeframe.client.cli import main; sys.argv[1:] = ['show', {str(tmp_path / 'x.ffz')!r}]; main()"
    )
    assert "freezeframe.client.render.text" in loaded
    assert "grpc" not in loaded


def test_json_is_utf8_whatever_the_locale(address: str, tmp_path: Path) -> None:
    done = client(
        "snap", "--output", "json", address, cwd=tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"
    )
    subprocess.run([sys.executable, "-m", "json.tool"], input=done.stdout, check=True, capture_output=True)


def test_text_is_ascii_where_the_locale_is(address: str, tmp_path: Path) -> None:
    done = client("snap", address, cwd=tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 4
    assert b"client 30 > [router 30] > prefill 30 > decode 0\n" in done.stdout
    assert done.stdout.isascii()


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "x.ffz").write_bytes(story_bytes())
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as stdout:
        done = subprocess.run(
            [*CLIENT, "show", "x.ffz", "all"], cwd=tmp_path, stdout=stdout, stderr=subprocess.PIPE, check=False,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_stdout_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.ffz").write_bytes(story_bytes())
    with open("/dev/full", "wb") as stdout:
        done = subprocess.run(
            [*CLIENT, "show", "x.ffz", "all"], cwd=tmp_path, stdout=stdout, stderr=subprocess.PIPE, check=False,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.splitlines()[0] == b"Error: writing the result to stdout: No space left on device"


def bomb(megabytes: int) -> bytes:
    """A whole file of some kB with one section of empty records."""
    field = snapshot_pb2.Snapshot.DESCRIPTOR.fields_by_name["sockets"].number
    plain = bytes([field << 3 | 2, 0]) * (megabytes << 19)
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(plain)
    manifest = file_pb2.Manifest()
    manifest.hosts.add().sections.add(
        name="sockets", compressed_bytes=len(frame), bytes=len(plain), digest=hashlib.sha256(frame).digest(), items=1
    )
    head = manifest.SerializeToString()
    return file.MAGIC + struct.pack("<II", 1, len(head)) + hashlib.sha256(head).digest() + head + frame


@pytest.mark.parametrize("megabytes", [8, 64])
def test_a_small_file_that_unpacks_to_more_than_memory_is_refused(tmp_path: Path, megabytes: int) -> None:
    (tmp_path / "bomb.ffz").write_bytes(bomb(megabytes))
    assert (tmp_path / "bomb.ffz").stat().st_size < 20_000
    with open(tmp_path / "said", "wb") as said:
        process = subprocess.Popen([*CLIENT, "show", "bomb.ffz", "sockets"], cwd=tmp_path, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    words = (tmp_path / "said").read_text()
    assert process.returncode == 5
    assert "Traceback" not in words
    assert "Error: " in words
    # In kB: the bound, and what is mapped from files.
    assert usage.ru_maxrss < 2_500_000


def test_where_the_file_is_is_said_though_stdout_is_full(address: str, tmp_path: Path) -> None:
    with open("/dev/full", "wb") as stdout:
        done = subprocess.run(
            [*CLIENT, "snap", address], cwd=tmp_path, stdout=stdout, stderr=subprocess.PIPE, check=False,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.decode().splitlines()[-2:] == [
        "Error: writing the result to stdout: No space left on device",
        NAME,
    ]
    assert (tmp_path / NAME).read_bytes() == story_bytes()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["snap", "--help"]])
def test_a_full_stdout_is_said_of_help_too(arguments: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "wb") as stdout:
        done = subprocess.run(
            [*CLIENT, *arguments], cwd=tmp_path, stdout=stdout, stderr=subprocess.PIPE, check=False, timeout=TIMEOUT_S
        )
    assert (done.returncode, done.stderr) == (4, b"Error: writing to stdout: No space left on device\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-", "2>/dev/full"])
@pytest.mark.parametrize(("command", "code"), [("snap", 4), ("show x.ffz", 0), ("list", 0), ("show none.ffz", 5)])
def test_closed_streams_change_no_exit_code(address: str, tmp_path: Path, command: str, code: int, closed: str) -> None:
    (tmp_path / "x.ffz").write_bytes(story_bytes())
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *CLIENT, *command.split()], cwd=tmp_path, check=False, timeout=TIMEOUT_S,
        capture_output=True, env={**os.environ, "FREEZEFRAME_HOST": address},
    )  # fmt: skip
    assert done.returncode == code
    assert b"Traceback" not in done.stderr
    if command == "snap":
        assert (tmp_path / NAME).read_bytes() == story_bytes()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_it_and_the_call(
    script: Script, address: str, tmp_path: Path, number: int, code: int
) -> None:
    def wait(_request: object, context: object) -> Iterator[service_pb2.CaptureEvent]:
        context.add_callback(script.release.set)  # type: ignore[attr-defined]
        yield service_pb2.CaptureEvent(progress=step("snapshot_sockets", "OK"))
        script.release.wait(TIMEOUT_S)

    script.capture = wait
    with subprocess.Popen(
        [*CLIENT, "snap", address], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        # It is in the middle of the capture now.
        assert process.stderr.readline() == b"snapshot_sockets  OK  41 ms\n"
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == code
    assert (stdout, os.listdir(tmp_path)) == (b"", [])
    assert b"Traceback" not in stderr
    # The agent saw its call cancelled.
    assert script.release.wait(TIMEOUT_S)


def on_a_terminal(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Run with all three streams on a pseudo terminal of 80 columns; exit code and what the screen got."""
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", "LC_ALL": "C.UTF-8"}
        environment.pop("NO_COLOR", None)
        os.execve(CLIENT[0], [*CLIENT, *arguments], environment)
    said = b""
    deadline = time.monotonic() + TIMEOUT_S
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while time.monotonic() < deadline and select.select([screen], [], [], TIMEOUT_S)[0]:
            said += os.read(screen, 65536)
    os.close(screen)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.decode()


def test_a_terminal_gets_colour_a_live_table_and_lines_that_fit(script: Script, address: str, tmp_path: Path) -> None:
    code, said = on_a_terminal("snap", address, cwd=tmp_path)
    assert code == 4
    assert "\x1b[1;7m[router 30]\x1b[0m" in said
    # The live table was drawn, and erased when the capture ended.
    assert "snapshot_sockets" in said.partition("ROUTER_DUAL_LEG")[0]
    assert "\x1b[2K" in said.partition("ROUTER_DUAL_LEG")[0]
    result = "ROUTER_DUAL_LEG" + said.partition("ROUTER_DUAL_LEG")[2]
    plain = re.sub("\x1b\\[[0-9;]*m", "", result).replace("\r\n", "\n")
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert plain.splitlines()[-1] == NAME


def test_a_terminal_without_colour_gets_plain_lines(address: str, tmp_path: Path) -> None:
    code, said = on_a_terminal("--color", "never", "snap", address, cwd=tmp_path)
    assert code == 4
    assert "\x1b" not in said
    assert said.startswith("snapshot_sockets  OK  41 ms\r\nROUTER_DUAL_LEG")


def module(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def alone() -> Iterator[Path]:
    """A runtime directory in which no daemon has a socket."""
    if os.path.exists("/run/freezeframe/capture.sock"):
        pytest.skip("a daemon runs on this machine")
    with tempfile.TemporaryDirectory(prefix="ff-") as name:
        yield Path(name)


def test_a_client_without_the_agents_packages_says_what_to_install(alone: Path, tmp_path: Path) -> None:
    module(
        tmp_path, "shadow/structlog.py", "raise ModuleNotFoundError(\"No module named 'structlog'\", name='structlog')"
    )
    done = client("snap", cwd=tmp_path, XDG_RUNTIME_DIR=str(alone), PYTHONPATH=str(tmp_path / "shadow"))
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.decode().splitlines()[-1] == "Hint: pip install 'freezeframe[agent]'"
    assert os.listdir(alone) == []


def test_a_private_agent_that_cannot_start_is_said_with_its_last_words(alone: Path, tmp_path: Path) -> None:
    module(tmp_path, "shadow/structlog.py", "raise SystemExit('the disk is on fire')")
    done = client("snap", "--embedded", cwd=tmp_path, XDG_RUNTIME_DIR=str(alone), PYTHONPATH=str(tmp_path / "shadow"))
    assert done.returncode == 3
    assert "its last words: the disk is on fire" in done.stderr.decode()
    assert os.listdir(alone) == []
