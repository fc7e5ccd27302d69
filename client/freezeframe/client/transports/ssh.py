"""OpenSSH: the agent's sockets, forwarded into a private directory of this machine.

No port is open on the host and no certificate is needed; ssh's configuration, agent, jump hosts and known hosts count
as they do at the command line. Only the sharing of connections is off, since a master would go on to forward the
sockets when this client has ended. ssh asks on a terminal; without one nothing is asked (BatchMode).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from freezeframe.client.connection import check_answers
from freezeframe.client.errors import (
    AgentDiedError,
    AgentError,
    AgentNotThereError,
    ForwardingError,
    NotAnAgentError,
    SocketPermissionError,
)
from freezeframe.client.hosts import Ssh, Target
from freezeframe.client.sockets import private_directory
from freezeframe.client.transports import programs

# Without a terminal; on one, somebody may be typing a password.
CONNECT_S = 30.0
_ASK_S = 15.0
_BREAK_S = 1.0
_POLL_S = 0.02
_OPEN_FAILED = b"open failed: "
# Of `ls -l`: mode, links, owner, group.
_GROUP_COLUMN = 3


@contextmanager
def forwarded(place: Ssh, environ: Mapping[str, str], *, terminal: bool | None = None) -> Iterator[Target]:
    """Run ssh for as long as the block runs; give the first socket of `place` on which an agent answers.

    Raises ForwardingError with ssh's own words, AgentNotThereError, SocketPermissionError, AgentError.
    """
    terminal = sys.stdin.isatty() if terminal is None else terminal
    directory = private_directory(environ)
    log = os.path.join(directory, "ssh.log")
    process: subprocess.Popen[bytes] | None = None
    try:
        local = [os.path.join(directory, name) for name in place.sockets]
        process = _start(place, local, log, terminal=terminal)
        _await_sockets(process, local, log, place, None if terminal else CONNECT_S)
        try:
            yield Target(path=_first_that_answers(place, local, log, terminal=terminal), name=place.name)
        except AgentDiedError as error:
            # The connection broke, or the agent did: ssh itself ends within a moment of the first.
            with suppress(subprocess.TimeoutExpired):
                process.wait(_BREAK_S)
            if process.returncode is None:
                raise
            raise _ended(process, log, place) from error
    finally:
        if process is not None:
            programs.end(process)
        shutil.rmtree(directory, ignore_errors=True)


def options(place: Ssh, *, terminal: bool) -> list[str]:
    """Begin a command line of ssh; the destination comes last, after --."""
    return [
        "ssh", "-T", "-a", "-x", "-S", "none",
        "-o", f"BatchMode={'no' if terminal else 'yes'}",
        *(("-p", str(place.port)) if place.port is not None else ()),
    ]  # fmt: skip


def _start(place: Ssh, local: Sequence[str], log: str, *, terminal: bool) -> subprocess.Popen[bytes]:
    forwards = []
    for path in local:
        # ssh expands % in what it forwards.
        forwards += ["-L", f"{path.replace('%', '%%')}:{place.directory}/{os.path.basename(path)}"]
    command = [
        *options(place, terminal=terminal), "-N",
        "-o", "ExitOnForwardFailure=yes", "-o", "StreamLocalBindUnlink=yes", *forwards, "--", place.destination,
    ]  # fmt: skip
    try:
        with open(log, "wb") as stream:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stream)
    except FileNotFoundError as error:
        raise ForwardingError(
            f"connecting to {place.name}: there is no ssh here", "install OpenSSH's client: apt install openssh-client"
        ) from error
    except OSError as error:
        raise ForwardingError(f"connecting to {place.name}: starting ssh: {error.strerror}") from error


def _await_sockets(
    process: subprocess.Popen[bytes], local: Sequence[str], log: str, place: Ssh, limit_s: float | None
) -> None:
    """Wait until ssh listens on all of them, which it does once it is let in."""
    begin = time.monotonic()
    while not all(os.path.exists(path) for path in local):
        if process.poll() is not None:
            raise _ended(process, log, place)
        if limit_s is not None and time.monotonic() - begin > limit_s:
            raise programs.failed(f"connecting to {place.name}: ssh was not let in within {limit_s:.0f} s", log)
        time.sleep(_POLL_S)


def _first_that_answers(place: Ssh, local: Sequence[str], log: str, *, terminal: bool) -> str:
    for path in local:
        failed = programs.read(log).count(_OPEN_FAILED)
        try:
            check_answers(Target(path=path, name=place.name))
        except (NotAnAgentError, AgentNotThereError):
            # What ssh could not open at the far end ends at once, without a byte.
            if programs.read(log).count(_OPEN_FAILED) == failed:
                raise
        else:
            return path
    raise _not_opened(place, terminal=terminal)


def _not_opened(place: Ssh, *, terminal: bool) -> AgentError:
    """Ask the host why: sshd itself only says that it could not."""
    doing = f"connecting to {place.name}"
    path = f"{place.directory}/{place.sockets[0]}"
    command = [*options(place, terminal=terminal), "--", place.destination, f"ls -ld {path}; test -w {path}"]
    line = ""
    with suppress(OSError, subprocess.TimeoutExpired):
        # Its own errors are no news: what is said here says it better.
        asked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_ASK_S)
        line = next((each for each in asked.stdout.decode("utf-8", "replace").splitlines() if each.endswith(path)), "")
        if line and asked.returncode:
            group = line.split()[_GROUP_COLUMN]
            if group == "root":
                return SocketPermissionError(
                    f"{doing}: ssh was let in, but its user may not open {path} there: it belongs to root alone",
                    "name a group in that agent's configuration, or go in as root: ssh://root@HOST",
                )
            return SocketPermissionError(
                f"{doing}: ssh was let in, but its user may not open {path} there: it belongs to the group {group}",
                f"have that user join it: sudo usermod -aG {group} USER",
            )
    if line:
        # This sshd says the same to both.
        return AgentNotThereError(
            f"{doing}: ssh was let in, but {path} there cannot be opened: no agent listens on it any more, "
            "or that sshd forwards no unix sockets",
            "there: sudo systemctl restart freezeframe-agentd; or in sshd_config: AllowStreamLocalForwarding yes",
        )
    return AgentNotThereError(
        f"{doing}: ssh was let in, but no agent has its sockets in {place.directory} there",
        "start it there: sudo systemctl start freezeframe-agentd, or sudo freezeframe-agentd; "
        "where it is not to run for good, as root: freezeframe snap --start root@HOST",
    )


def _ended(process: subprocess.Popen[bytes], log: str, place: Ssh) -> ForwardingError:
    return programs.ended(process, log, f"connecting to {place.name}: ssh")
