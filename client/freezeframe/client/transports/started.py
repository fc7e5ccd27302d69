"""A private agent on another host, over OpenSSH, where none is installed: this installation's own files, copied.

It runs in a directory of its own (0700) under that host's Python, which has to be of this release, since packages have
compiled parts. Nothing is downloaded there and nothing installed; all of it goes when the connection ends, however it
does. ssh forwards the agent's sockets as whoever it is let in as, so that has to be root.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import platform
import re
import select
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import IO

from freezeframe.client.errors import AgentExtraMissingError, PrivateAgentError
from freezeframe.client.hosts import Ssh
from freezeframe.client.sockets import private_directory
from freezeframe.client.transports import programs, ssh

_PROJECT, _EXTRA = "freezeframe", "agent"
# What of it an agent consists of.
_ROOMS = ("freezeframe.agentd", "freezeframe.judge", "freezeframe.v1")
_RELEASE = f"{sys.version_info[0]}.{sys.version_info[1]}"
_PACKAGES = f"lib/python{_RELEASE}/site-packages"
_PYTHON = f"python{_RELEASE}"
# For the shell there. What Python runs comes over standard input: its length, then itself.
_FAR = (
    f"sh -c 'for p in {_PYTHON} python3; do command -v $p >/dev/null && "
    f'$p -c "import sys; sys.exit(not sys.version_info[:2] == {sys.version_info[:2]})" </dev/null && '
    'exec $p -c "import sys; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"; '
    f'done; echo "no: there is no {_PYTHON} there"\''
)
_NAME = re.compile(r"[\w.-]+", re.ASCII)
_PIECE = 1 << 20
# A host in trouble may be a slow one: to unpack, and to start Python four times.
_READY_S = 120.0
_END_S = 10.0
_HINT = "install the package there, or run it there: freezeframe snap --embedded"


@contextmanager
def started(place: Ssh, environ: Mapping[str, str], say: Callable[[str], None]) -> Iterator[Ssh]:
    """Start one, give where its sockets are, end it. Raises AgentError."""
    doing = f"starting an agent on {place.name}"
    terminal = sys.stdin.isatty()
    directory = private_directory(environ)
    process: subprocess.Popen[bytes] | None = None
    try:
        log = os.path.join(directory, "ssh.log")
        process = _begin(place, log, terminal=terminal)
        far = Path(__file__).with_name("far_side.py").read_bytes()
        far += f"\nmain({platform.machine()!r}, {platform.libc_ver()[0]!r})\n".encode()
        _send(process, b"%d\n%b" % (len(far), far))
        if _line(process, log, doing, None if terminal else ssh.CONNECT_S) != "send":
            raise PrivateAgentError(f"{doing}: it did not ask for its files")
        with tempfile.TemporaryFile() as packed:
            try:
                _pack(packed)
            except OSError as error:
                raise PrivateAgentError(f"{doing}: packing its files: {error.strerror}", "set TMPDIR") from error
            size = packed.tell()
            packed.seek(0)
            say(f"No agent runs on {place.name}: copying one there for this capture, {size / 1e6:.0f} MB.")
            _send(process, b"%d\n" % size)
            while piece := packed.read(_PIECE):
                _send(process, piece)
        word, _, path = _line(process, log, doing, _READY_S).partition(" ")
        if word != "ready" or not path.startswith("/"):
            raise PrivateAgentError(f"{doing}: it said {word!r} instead of ready")
        yield replace(place, directory=os.path.dirname(path))
    finally:
        if process is not None:
            _end(process)
        shutil.rmtree(directory, ignore_errors=True)


def _begin(place: Ssh, log: str, *, terminal: bool) -> subprocess.Popen[bytes]:
    command = [*ssh.options(place, terminal=terminal), "--", place.destination, _FAR]
    with open(log, "wb") as stream:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream)


def _send(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Send what the other end may no longer want: what it says tells."""
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.write(data)
            process.stdin.flush()


def _line(process: subprocess.Popen[bytes], log: str, doing: str, limit_s: float | None) -> str:
    """Give the next line of the far side. Raises PrivateAgentError with its reason, ForwardingError with ssh's own."""
    stdout = process.stdout
    if stdout is None:
        raise PrivateAgentError(f"{doing}: its output was not opened")
    if not select.select([stdout], [], [], limit_s)[0]:
        raise programs.failed(f"{doing}: nothing was heard of it for {limit_s or 0.0:.0f} s", log)
    line = stdout.readline().decode("utf-8", "replace").rstrip("\n")
    if not line:
        raise programs.ended(process, log, f"{doing}: ssh")
    word, _, why = line.partition(": ")
    if word == "no":
        raise PrivateAgentError(f"{doing}: {why}", _HINT)
    return line


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close its input, which ends the agent; what it does then, it does by itself."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
        return
    programs.end(process)


def _pack(stream: IO[bytes]) -> None:
    """Write an archive of an environment with the agent in it. Raises AgentExtraMissingError."""
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path, name in _files():
            archive.add(path, name, recursive=False)


def _files() -> Iterator[tuple[str, str]]:
    """Paths here, and names below the environment."""
    for room in _ROOMS:
        spec = importlib.util.find_spec(room)
        for root in spec.submodule_search_locations or () if spec is not None else ():
            for path in sorted(Path(root).rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    yield str(path), f"{_PACKAGES}/{room.replace('.', '/')}/{path.relative_to(root)}"
    for package in _distributions():
        for file in package.files or ():
            # Of this project, what tells its version alone: the rest may be elsewhere, where it is edited.
            if file.suffix == ".pyc" or (package.name == _PROJECT and not file.parts[0].endswith(".dist-info")):
                continue
            located = str(package.locate_file(file))
            if os.path.isfile(located):
                yield located, os.path.normpath(f"{_PACKAGES}/{file}")


def _distributions() -> list[metadata.Distribution]:
    """Packages that an agent needs, this project first. Raises AgentExtraMissingError."""
    found: dict[str, metadata.Distribution] = {}
    wanted = [_PROJECT]
    while wanted:
        name = wanted.pop(0)
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            if name not in _required(found[_PROJECT], of_extra=True):
                # Of another system, or of another Python.
                continue
            raise AgentExtraMissingError(
                f"copying the agent to another host: {name} is not installed here", "pip install 'freezeframe[agent]'"
            ) from error
        each = _required(found[name], of_extra=False)
        if name == _PROJECT:
            each += _required(found[name], of_extra=True)
        wanted += [other for other in each if other not in found and other not in wanted]
    return [*found.values()]


def _required(package: metadata.Distribution, *, of_extra: bool) -> list[str]:
    """Names of what a package requires always, or for the extra with which this project is an agent."""
    names = []
    for line in package.requires or ():
        name, _, marker = line.partition(";")
        wanted = f"extra == '{_EXTRA}'" in marker.replace('"', "'") if of_extra else "extra" not in marker
        if wanted:
            names.append(re.sub(r"[-_.]+", "-", _NAME.match(name.strip())[0]).lower())  # type: ignore[index]
    return names
