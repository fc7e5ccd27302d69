"""Running the py-spy of this environment: finding it, several at once under time limits, reading its answers.

Never a py-spy from PATH, which may be old and stop its target. Started by fork and exec with nothing waited for: a
program file on dead storage then costs its time limit and freezes nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from freezeframe.agentd.host.text import escape
from freezeframe.judge.model import Frame, PythonThread

OLDEST = (0, 4, 1)
# 4,000 threads are 4 MiB.
_OUTPUT_BYTES = 32 * 1024 * 1024
_TEXT_BYTES = 500
_TICK_S = 0.1
# Time that a killed one has to end before it is left alone.
_END_S = 0.05
_EXEC_FAILED = 127


class MissingError(Exception):
    """There is no usable py-spy in this environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one py-spy gave."""

    pid: int
    stdout: bytes
    stderr: bytes
    # Why there is no answer: "no answer within 2.0 s"; empty when it ended by itself.
    failure: str
    # Exit status; -1 when it was killed.
    status: int


@dataclass(slots=True)
class _Running:
    target: int
    child: int
    until: float
    pipes: dict[int, bytearray] = field(default_factory=dict)
    open_pipes: int = 2

    def output(self) -> tuple[bytes, bytes]:
        stdout, stderr = self.pipes.values()
        return bytes(stdout), bytes(stderr)


def locate() -> str:
    """Path of the py-spy that was installed with this package. Raises MissingError."""
    try:
        distribution = metadata.distribution("py-spy")
    except metadata.PackageNotFoundError as error:
        raise MissingError("py-spy is not installed in the agent's environment") from error
    version = tuple(int(number) for number in re.findall(r"\d+", distribution.version)[:3])
    if version < OLDEST:
        raise MissingError(f"py-spy {distribution.version} is too old: {'.'.join(map(str, OLDEST))} is needed")
    for file in distribution.files or ():
        path = os.path.abspath(str(distribution.locate_file(file)))
        if file.name == "py-spy" and os.access(path, os.X_OK):
            return path
    raise MissingError(f"py-spy {distribution.version} is installed without its program")


def dump_all(
    program: str, targets: Sequence[int], *, limit_s: float, at_once: int, working_on: Callable[[Sequence[int]], None]
) -> Iterator[Answer]:
    """Dump the targets, `at_once` at a time, each for `limit_s` at most; answers come as they are ready.

    `working_on` is told every tenth of a second which targets are being looked at, the one looked at longest first.
    """
    waiting = list(targets)
    running: list[_Running] = []
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and len(running) < max(1, at_once):
                    running.append(_start(program, waiting.pop(0), limit_s, selector))
                working_on([each.target for each in running])
                nearest = min(each.until for each in running) - time.monotonic()
                for key, _ in selector.select(max(0.0, min(_TICK_S, nearest))):
                    _read(key.data, key.fd, selector)
                for each in list(running):
                    answer = _answer_of(each, limit_s)
                    if answer is not None:
                        running.remove(each)
                        _close(each, selector)
                        yield answer
        finally:
            for each in running:
                _kill(each.child)
                _close(each, selector)


def _start(program: str, target: int, limit_s: float, selector: selectors.BaseSelector) -> _Running:
    out, out_end = os.pipe()
    err, err_end = os.pipe()
    arguments = [program, "dump", "--json", "--nonblocking", "--pid", str(target)]
    child = os.fork()
    if child == 0:
        try:
            null = os.open(os.devnull, os.O_RDONLY)
            for source, number in ((null, 0), (out_end, 1), (err_end, 2)):
                os.dup2(source, number)
            # What else is open closes with the exec (PEP 446).
            os.execve(program, arguments, {"RUST_BACKTRACE": "0"})  # noqa: S606 - no shell is meant
        finally:
            os._exit(_EXEC_FAILED)
    os.close(out_end)
    os.close(err_end)
    running = _Running(target=target, child=child, until=time.monotonic() + limit_s)
    for pipe in (out, err):
        os.set_blocking(pipe, False)
        running.pipes[pipe] = bytearray()
        selector.register(pipe, selectors.EVENT_READ, running)
    return running


def _read(running: _Running, pipe: int, selector: selectors.BaseSelector) -> None:
    data = os.read(pipe, 256 * 1024)
    if data:
        running.pipes[pipe] += data
    else:
        selector.unregister(pipe)
        running.open_pipes -= 1


def _answer_of(running: _Running, limit_s: float) -> Answer | None:
    failure, status = "", -1
    if any(len(data) > _OUTPUT_BYTES for data in running.pipes.values()):
        failure = f"an answer of more than {_OUTPUT_BYTES >> 20} MiB"
        _kill(running.child)
    elif running.open_pipes == 0 and (ended := _ended(running.child)) is not None:
        status = ended
        if status == _EXEC_FAILED:
            failure = "its program could not be started"
    elif time.monotonic() >= running.until:
        failure = f"no answer within {limit_s:.1f} s"
        if not _kill(running.child):
            failure += ", and it has not ended when killed"
    else:
        return None
    stdout, stderr = running.output()
    return Answer(pid=running.target, stdout=stdout, stderr=stderr, failure=failure, status=status)


def _ended(child: int) -> int | None:
    pid, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def _kill(child: int) -> bool:
    """Kill a child; whether it has ended. One that is stuck in a read of its target does not."""
    os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + _END_S
    while _ended(child) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _close(running: _Running, selector: selectors.BaseSelector) -> None:
    for pipe in running.pipes:
        with contextlib.suppress(KeyError):
            selector.unregister(pipe)
        os.close(pipe)


def why_failed(answer: Answer) -> str:
    """Why py-spy gave no stacks, in a few words; "" when the target runs no Python."""
    if answer.failure:
        return f"py-spy: {answer.failure}"
    text = answer.stderr.decode("utf-8", "backslashreplace")
    if "ermission denied" in text.lower() or "Operation not permitted" in text:
        return "py-spy may not read it: permission denied"
    if "Failed to find python version" in text or "Failed to find a python" in text:
        return ""
    if "process executable name" in text or "No such process" in text:
        return "it has ended, or only its main thread has"
    first = next(iter(answer.stderr.splitlines()), b"")
    return f"py-spy failed with status {answer.status}: {escape(first, 200)}"


def parse(data: bytes, *, pid: int, frames: int, host_tids: Callable[[int], int]) -> tuple[PythonThread, ...]:
    """Parse `dump --json`: function, file and line of each frame, innermost first. Raises ValueError.

    `host_tids` gives the host's thread id for the one that py-spy tells, which is that of the target's namespace.
    """
    try:
        dumped = json.loads(data)
        if not isinstance(dumped, list):
            raise ValueError("not a list")  # noqa: TRY301 - as everything else that is no answer
        return tuple(_thread(each, pid, frames, host_tids) for each in dumped)
    except (KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise ValueError(f"reading py-spy's answer of {len(data)} bytes: {error!r}") from error


def _thread(dumped: dict[str, Any], pid: int, frames: int, host_tids: Callable[[int], int]) -> PythonThread:
    told = dumped.get("os_thread_id")
    name = _text(dumped.get("thread_name") or "")
    if not told and not name:
        name = f"{dumped['thread_id']:#x}"
    return PythonThread(
        pid=pid,
        tid=host_tids(int(told)) if told else 0,
        name=name,
        frames=tuple(
            Frame(
                function=_text(frame["name"]),
                file=_text(frame.get("short_filename") or frame["filename"]),
                line=int(frame["line"]),
            )
            for frame in dumped["frames"][:frames]
        ),
        active=bool(dumped.get("active")),
        owns_gil=bool(dumped.get("owns_gil")),
    )


def _text(value: str) -> str:
    return escape(value.encode("utf-8", "surrogatepass"), _TEXT_BYTES)
