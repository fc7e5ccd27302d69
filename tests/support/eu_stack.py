"""What elfutils' eu-stack says of a process's stacks; names as the symbol tables have them."""

from __future__ import annotations

import re
import subprocess

_THREAD = re.compile(r"^TID (\d+):$")
_FRAME = re.compile(r"^#\d+ +0x([0-9a-f]+)(?: +- 1)? *(.*)$")


def backtraces(pid: int) -> dict[int, list[tuple[int, str]]]:
    """Program counter and function of each frame of each thread, innermost first; stops the process meanwhile."""
    command = ["eu-stack", "--raw", "-n", "0", "-p", str(pid)]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout
    found: dict[int, list[tuple[int, str]]] = {}
    frames: list[tuple[int, str]] = []
    for line in said.splitlines():
        if thread := _THREAD.match(line):
            frames = found.setdefault(int(thread[1]), [])
        elif frame := _FRAME.match(line):
            frames.append((int(frame[1], 16), frame[2]))
    return found
