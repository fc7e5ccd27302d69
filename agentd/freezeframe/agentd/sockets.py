"""The unix sockets' places: whose directory, whose path, who answers there already.

The filesystem is what authorises (gRPC's "local" credentials check nobody), so nothing of it is left to chance: the
directory is ours and nobody else may write in it, a path is never a link, and a socket is 0660 from its first instant.
"""

from __future__ import annotations

import contextlib
import grp
import os
import socket
import stat
from collections.abc import Iterator

from freezeframe.agentd.errors import SocketInUseError, SocketRefusedError

# sun_path, with its NUL.
_NO_GROUP = 2**32 - 1
_GID_DIGITS = 10
_MAX_PATH_BYTES = 107
# Client preface of HTTP/2 and an empty SETTINGS frame: a living server answers at once with its own.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_PROBE_S = 2.0


def prepare_directory(path: str) -> None:
    """Create the directory, or check the one that is there. Raises SocketRefusedError.

    A new one is 0711: anybody may reach a socket in it by name, which then lets only its group in.
    """
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o711)
            os.chmod(path, 0o711)  # noqa: S103 - whatever the umask; entries are seen by root alone
        found = os.lstat(path)
    except OSError as error:
        raise SocketRefusedError(
            f"preparing {path}: {error.strerror}", "run as root, or choose a directory with --runtime-dir"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise SocketRefusedError(f"{path} is no directory", "remove it, or choose another with --runtime-dir")
    if found.st_uid != os.geteuid():
        raise SocketRefusedError(
            f"{path} belongs to uid {found.st_uid}, not to this agent (uid {os.geteuid()})",
            "choose another directory with --runtime-dir",
        )
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise SocketRefusedError(
            f"others may write in {path}: they could put a socket of theirs in place of ours", f"chmod 711 {path}"
        )


def check_length(path: str) -> None:
    """Refuse a path that no socket can have. Raises SocketRefusedError."""
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise SocketRefusedError(
            f"{path} is too long for a socket ({_MAX_PATH_BYTES} bytes)", "choose a shorter --runtime-dir"
        )


def group_id(group: str, path: str) -> int:
    """Find the group that `path` is for. Raises SocketRefusedError when there is none."""
    # A number need not have a name; the last one is that of no group.
    if group.isdecimal() and len(group) <= _GID_DIGITS and int(group) < _NO_GROUP:
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise SocketRefusedError(f"there is no group {group!r} for {path}", f"groupadd --system {group}") from error


def claim(path: str) -> None:
    """Make `path` free to bind, of a dead agent too. Raises SocketRefusedError, SocketInUseError."""
    check_length(path)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketRefusedError(f"{path} is there and is no socket", "look who made it, then remove it")
    if found.st_uid != os.geteuid():
        raise SocketRefusedError(f"{path} belongs to uid {found.st_uid}", "look who made it, then remove it")
    if answers(path):
        raise SocketInUseError(
            f"another agent answers on {path}", "stop it: systemctl stop freezeframe-agentd, or choose --runtime-dir"
        )
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def answers(path: str, timeout_s: float = _PROBE_S) -> bool:
    """Whether a living gRPC server is behind a socket.

    Being able to connect is no proof: an agent that a dead disk holds after its SIGKILL still has its listener.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(timeout_s)
        try:
            probe.connect(path)
            probe.sendall(_PREFACE)
            return probe.recv(1) != b""
        except OSError:
            return False


@contextlib.contextmanager
def binding() -> Iterator[None]:
    """Bind inside: the socket is then 0660 from the start. The umask is the process's, so bind before any thread."""
    before = os.umask(0o117)
    try:
        yield
    finally:
        os.umask(before)


def give_to_group(path: str, group: str) -> None:
    """Let a group in. Raises SocketRefusedError when there is no such group."""
    if not group:
        return
    gid = group_id(group, path)
    try:
        os.chown(path, -1, gid, follow_symlinks=False)
    except OSError as error:
        raise SocketRefusedError(
            f"giving {path} to the group {group}: {error.strerror}", "run as root or as a member of that group"
        ) from error


def identity(path: str) -> tuple[int, int]:
    """Tell one file from another of the same path."""
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def remove(path: str, mine: tuple[int, int]) -> None:
    """Remove a socket of ours, not one that a successor put there."""
    with contextlib.suppress(FileNotFoundError):
        if identity(path) == mine:
            os.unlink(path)
