"""Runs a command as the user nobody, without any capability, where that user could not even reach the interpreter.

    unshare --mount --propagation private python as_nobody.py COMMAND...

A directory on the way that others may not pass is covered, in this mount namespace alone, by one that has the next
component only.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
import tempfile
from pathlib import Path

NOBODY = 65534
MS_BIND, MS_REC = 4096, 16384
PR_CAPBSET_DROP = 24
LIBC = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: bytes, flags: int, options: bytes) -> None:
    if LIBC.mount(os.fsencode(source), os.fsencode(target), kind, flags, options) != 0:
        raise OSError(ctypes.get_errno(), f"mounting {target}")


def open_the_way(path: Path) -> None:
    for folder, child in [(parent, path.parts[len(parent.parts)]) for parent in reversed(path.parents)]:
        if folder.stat().st_mode & stat.S_IXOTH:
            continue
        aside = tempfile.mkdtemp()
        mount(str(folder), aside, b"", MS_BIND | MS_REC, b"")
        mount("none", str(folder), b"tmpfs", 0, b"mode=755")
        (folder / child).mkdir()
        mount(f"{aside}/{child}", str(folder / child), b"", MS_BIND | MS_REC, b"")


def main() -> None:
    for path in {sys.base_prefix, sys.prefix, str(Path(__file__).parents[2])}:
        open_the_way(Path(path))
    for capability in range(64):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
