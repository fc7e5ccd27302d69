"""A file on a file system that does not answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.support.stall import stalled_file

# Its readers hold no lock that anybody else could need, so it may stay for as long as a wedge is looked at.
WATCHDOG_S = 300.0


@contextlib.contextmanager
def dead_file(folder: Path) -> Iterator[str]:
    """Path of a file below `folder`; whoever reads it sleeps uninterruptibly until the end, or until it is killed."""
    with stalled_file(folder, direct=False, watchdog_s=WATCHDOG_S) as stall:
        yield stall.path
    (folder / "stall").rmdir()
