"""Writing a file whole or not at all. Blocks on the disk."""

from __future__ import annotations

import contextlib
import errno
import os

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


def write_whole(directory: int, name: str, data: bytes, *, temporary: str) -> None:
    """Write a file for its owner alone into an open directory, in place of one of that name. Raises OSError.

    Its space is reserved first (a full disk says so at once), it is written under a temporary name, which nobody may
    have, synced and renamed.
    """
    fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _FLAGS, 0o600, dir_fd=directory)
    try:
        try:
            _reserve(fd, len(data))
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    os.fsync(directory)


def _reserve(fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        # Filesystems without it: the write itself will tell.
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            raise
