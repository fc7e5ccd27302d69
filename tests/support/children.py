"""Real child processes for tests: started, waited for until they say that they are ready, always ended."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"


@contextlib.contextmanager
def child(*command: str | bytes, ready: bool = True, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command`; wait for its first line where `ready` is set; kill it at the end."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        **options,  # type: ignore[call-overload]
    )
    try:
        if ready:
            assert process.stdout.readline(), f"{command!r} ended before it was ready"
        yield process
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()


def python(code: str, *arguments: str, **options: object) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run Python code that prints a line when it is ready."""
    return child(sys.executable, "-c", code, *arguments, **options)


def program(
    name: str, *arguments: str, **options: object
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a program of tests/programs that prints a line when it is ready."""
    return child(sys.executable, str(PROGRAMS / name), *arguments, **options)
