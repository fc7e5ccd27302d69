"""A private agent for one capture: started, used, ended; never imported.

It is `python -m freezeframe.agentd --once` of the interpreter that runs the client, in a directory of its own (0700).
It prints "ready PATH" when its socket answers, and ends when its standard input is closed, which happens too when this
client is killed.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from freezeframe.client.errors import AgentExtraMissingError, PrivateAgentError
from freezeframe.client.hosts import Target
from freezeframe.client.sockets import private_directory

# The recorder may have to compile its programs.
READY_S = 30.0
_END_S = 5.0
# What freezeframe-agentd exits with when its packages are missing (sysexits.h: EX_UNAVAILABLE).
_EXIT_NO_PACKAGES = 69
_LOG_BYTES = 4096


@contextmanager
def private_agent(environ: Mapping[str, str]) -> Iterator[Target]:
    """Start one, give its socket, end it. Raises AgentExtraMissingError, PrivateAgentError."""
    directory = private_directory(environ)
    process: subprocess.Popen[bytes] | None = None
    try:
        log = os.path.join(directory, "agent.log")
        process = _start(directory, log)
        yield Target(path=_await_ready(process, log), name="a private agent")
    finally:
        if process is not None:
            _end(process)
        shutil.rmtree(directory, ignore_errors=True)


def _start(directory: str, log: str) -> subprocess.Popen[bytes]:
    try:
        with open(log, "wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "freezeframe.agentd", "--once",
                 "--runtime-dir", directory, "--state-dir", os.path.join(directory, "state")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream,
                # An interrupt is for the client, which then ends the agent in order.
                start_new_session=True,
            )  # fmt: skip
        # This client's bound is not the agent's.
        with suppress(ProcessLookupError):
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (hard, hard))
    except OSError as error:
        raise PrivateAgentError(
            f"starting a private agent: {error.filename or sys.executable}: {error.strerror}",
            "try the daemon: sudo freezeframe-agentd",
        ) from error
    return process


def _await_ready(process: subprocess.Popen[bytes], log: str) -> str:
    deadline = time.monotonic() + READY_S
    said = b""
    stdout = process.stdout
    if stdout is None:
        raise PrivateAgentError("starting a private agent: its output was not opened")
    while b"\n" not in said:
        left = deadline - time.monotonic()
        if left <= 0:
            raise PrivateAgentError(
                f"starting a private agent: not ready after {READY_S:.0f} s; its last words: {_last_words(log)}",
                "try the daemon: sudo freezeframe-agentd",
            )
        if not select.select([stdout], [], [], left)[0]:
            continue
        piece = os.read(stdout.fileno(), _LOG_BYTES)
        if not piece:
            raise _ended(process, log)
        said += piece
    word, _, path = said.partition(b"\n")[0].decode("utf-8", "replace").partition(" ")
    if word != "ready" or not path:
        raise PrivateAgentError(f"starting a private agent: it said {word!r} instead of ready")
    return path


def _ended(process: subprocess.Popen[bytes], log: str) -> PrivateAgentError | AgentExtraMissingError:
    try:
        status: int | None = process.wait(_END_S)
    except subprocess.TimeoutExpired:
        status = None
    words = _last_words(log)
    if status == _EXIT_NO_PACKAGES or "No module named" in words:
        return AgentExtraMissingError(
            "no daemon runs here, and this installation has the client alone: a private agent needs the rest",
            "pip install 'freezeframe[agent]'",
        )
    return PrivateAgentError(
        f"starting a private agent: it ended with status {status}; its last words: {words}",
        "run it by hand to see more: freezeframe-agentd --once",
    )


def _last_words(log: str) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1] if lines else "none"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close its input, which ends it; an agent that stays is asked, then left: it holds no target."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    for ask in (process.terminate, process.kill):
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            ask()
        else:
            return
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
