"""What gdb says of a process's stacks, by its symbol tables and without what debug information says was inlined."""

from __future__ import annotations

import re
import subprocess
import tempfile

# Runs inside gdb: one line per frame, "LWP COUNTER SYMBOL + OFFSET in section ...".
_SCRIPT = """
import gdb
for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame, exact = gdb.newest_frame(), True
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            counter = frame.pc()
            said = gdb.execute("info symbol %d" % (counter if exact else counter - 1), to_string=True)
            gdb.write("@ %d %x %s\\n" % (thread.ptid[1], counter, said.strip()))
            exact = frame.type() == gdb.SIGTRAMP_FRAME
        frame = frame.older()
"""
_FRAME = re.compile(r"^@ (\d+) ([0-9a-f]+) (?:No symbol matches.*|(.+?)(?: \+ \d+)? in section .*)$")


def backtraces(pid: int) -> dict[int, list[tuple[int, str]]]:
    """Program counter and function of each frame of each thread, innermost first; stops the process meanwhile."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(_SCRIPT)
        script.flush()
        command = ["gdb", "-batch", "-nx", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off"]
        command += ["-ex", "set backtrace past-main on", "-ex", f"source {script.name}", "-p", str(pid)]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    found: dict[int, list[tuple[int, str]]] = {}
    for line in said.splitlines():
        if (frame := _FRAME.match(line)) is not None:
            found.setdefault(int(frame[1]), []).append((int(frame[2], 16), frame[3] or ""))
    return found
