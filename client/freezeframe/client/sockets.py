"""Directories of this user's own, short enough for the sockets that go into them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress

from freezeframe.client.errors import PrivateAgentError

# sun_path, with its NUL and the longest name of a socket.
_LONGEST_DIRECTORY = 107 - len("/capture.sock")


def private_directory(environ: Mapping[str, str]) -> str:
    """Make a directory (0700) for a socket; whoever asks removes it. Raises PrivateAgentError."""
    candidates = (environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")  # noqa: S108 - mkdtemp picks the name
    for parent in candidates:
        if not parent or len(parent) + len("/freezeframe-12345678") > _LONGEST_DIRECTORY:
            continue
        with suppress(OSError):
            return tempfile.mkdtemp(prefix="freezeframe-", dir=parent)
    raise PrivateAgentError(
        "making a directory for a socket: none can be made", "set TMPDIR to one that you can write to"
    )
