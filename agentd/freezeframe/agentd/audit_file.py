"""The audit in a file of its own: rotated by size, and opened again where somebody else, such as logrotate, renamed it.

Alone in the thread of a `LogWriter`, since each call may wait for the disk. A rotation renames: what was written stays
where it is, what comes after goes into a new file with the old one's mode and owner. A line that cannot be written goes
to the log instead, which says why.
"""

from __future__ import annotations

import errno
import os
import stat

from freezeframe.agentd.config import AuditLog
from freezeframe.agentd.errors import ConfigError
from freezeframe.agentd.logs import Logger, Stream

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FIRST_MODE = 0o640
_HINT = "name a file in a directory that the agent's user may write in, such as /var/lib/freezeframe/audit.log"


def check(settings: AuditLog) -> None:
    """Refuse a place where no file can be. Raises ConfigError."""
    doing = f"looking at audit.file, {settings.file}"
    try:
        is_file = stat.S_ISREG(os.lstat(settings.file).st_mode)
    except FileNotFoundError:
        is_file = True
    except OSError as error:
        raise ConfigError(f"{doing}: {error.strerror}", _HINT) from error
    if not is_file:
        raise ConfigError(f"{doing}: it is there and is no file", _HINT)
    if not os.path.isdir(os.path.dirname(settings.file)):
        raise ConfigError(f"{doing}: its directory is not there", _HINT)


class AuditFile:
    """The stream of an audit's lines. One per front."""

    def __init__(self, settings: AuditLog, otherwise: Stream, logger: Logger) -> None:
        """Open the file; `otherwise` gets what it cannot take. Raises ConfigError."""
        self._path = settings.file
        self._max_bytes = settings.max_bytes
        self._keep = settings.keep
        self._otherwise = otherwise
        self._logger = logger
        # What cannot be done at present, told once.
        self._problems: set[str] = set()
        try:
            self._descriptor = self._open(None)
        except OSError as error:
            raise ConfigError(f"opening the audit file {self._path}: {error.strerror}", _HINT) from error

    def write(self, text: str) -> int:
        """Write one line."""
        try:
            self._write(text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            self._tell("writing", error, "calls are written here until it can be")
            self._otherwise.write(text)
        else:
            self._problems.discard("writing")
        return len(text)

    def flush(self) -> None:
        """Do nothing: a line is with the kernel when `write` has returned."""

    def _write(self, line: bytes) -> None:
        self._follow()
        size = os.fstat(self._descriptor).st_size
        if size and size + len(line) > self._max_bytes:
            self._rotate()
            size = os.fstat(self._descriptor).st_size
        if os.write(self._descriptor, line) != len(line):
            # Half a line would spoil the next one.
            os.ftruncate(self._descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _follow(self) -> None:
        """Open the file anew when another one, or none, has its name."""
        mine = os.fstat(self._descriptor)
        try:
            named = os.lstat(self._path)
        except FileNotFoundError:
            named = None
        if named is None or not os.path.samestat(mine, named):
            self._replace(mine)

    def _rotate(self) -> None:
        mine = os.fstat(self._descriptor)
        try:
            for number in range(self._keep - 1, 0, -1):
                if os.path.lexists(f"{self._path}.{number}"):
                    os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
            os.replace(self._path, f"{self._path}.1")
        except OSError as error:
            self._tell("rotating", error, "it grows until it can be")
            return
        self._problems.discard("rotating")
        self._replace(mine)

    def _replace(self, like: os.stat_result) -> None:
        descriptor = self._open(like)
        os.close(self._descriptor)
        self._descriptor = descriptor

    def _open(self, like: os.stat_result | None) -> int:
        """Open what has the name, or make it `like` another one. Raises OSError."""
        try:
            descriptor = os.open(self._path, _FLAGS)
        except FileNotFoundError:
            descriptor = os.open(self._path, _FLAGS | os.O_CREAT, 0o600)
            os.fchmod(descriptor, stat.S_IMODE(like.st_mode) if like else _FIRST_MODE)
            if like:
                self._give(descriptor, like)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is no file")
        return descriptor

    def _give(self, descriptor: int, like: os.stat_result) -> None:
        try:
            os.fchown(descriptor, like.st_uid, like.st_gid)
        except OSError as error:
            self._tell("giving the new one to the owner of the old one", error, "it belongs to the agent")

    def _tell(self, doing: str, error: OSError, what: str) -> None:
        if doing not in self._problems:
            self._problems.add(doing)
            self._logger.warning("audit file", error=f"{self._path}: {doing}: {error.strerror}; {what}")
