"""What `started` has another host's Python run: looks at the host, takes the files, runs the agent, removes the files.

Never imported: its text comes over ssh, so that it has no file there; standard library alone. On its output come one
line of its own, "send" or "no: " with the reason, and then the agent's.
"""

from __future__ import annotations

import gzip
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile

_PIECE = 1 << 20


def refusal(machine: str, libc: str) -> str:
    """Say why an agent made for this machine and C library cannot run here as root; empty when it can."""
    for what, here, made_for in (("machine", platform.machine(), machine), ("C library", platform.libc_ver()[0], libc)):
        if here != made_for:
            return f"the {what} there is {here or 'another one'}, and the packages here are for {made_for}"
    return f"it has to be root there, and ssh was let in as uid {os.geteuid()}" if os.geteuid() else ""


def take(directory: str) -> None:
    """Unpack an archive from standard input, after a line with its length. Raises OSError."""
    size = int(sys.stdin.buffer.readline() or 0)
    packed = os.path.join(directory, "packed")
    with open(packed, "wb") as stream:
        while size > 0:
            piece = sys.stdin.buffer.read(min(size, _PIECE))
            if not piece:
                raise OSError("the connection ended")
            size -= stream.write(piece)
    with gzip.open(packed) as unpacked, tarfile.open(fileobj=unpacked) as archive:
        archive.extractall(directory)  # noqa: S202 - written by this very client
    os.unlink(packed)


def run(directory: str) -> None:
    """Run the agent until standard input ends, by the Python of an environment of its own."""
    host_python = os.path.realpath(sys.executable)
    binaries = os.path.join(directory, "bin")
    os.makedirs(binaries, exist_ok=True)
    with open(os.path.join(directory, "pyvenv.cfg"), "w", encoding="utf-8") as stream:
        stream.write(f"home = {os.path.dirname(host_python)}\ninclude-system-site-packages = false\n")
    python = os.path.join(binaries, "python")
    os.symlink(host_python, python)
    places = ("--runtime-dir", os.path.join(directory, "run"), "--state-dir", os.path.join(directory, "state"))
    subprocess.call([python, "-m", "freezeframe.agentd", "--once", *places], cwd="/")


def tell(line: str) -> None:
    """Tell the client."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(machine: str, libc: str) -> None:
    """Be the far side of a client on such a machine."""
    why_not = refusal(machine, libc)
    tell(f"no: {why_not}" if why_not else "send")
    if why_not:
        return
    directory = ""
    try:
        directory = tempfile.mkdtemp(prefix="freezeframe-")
        take(directory)
        run(directory)
    except (OSError, tarfile.TarError) as error:
        tell(f"no: copying it: {getattr(error, 'strerror', '') or error}")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
