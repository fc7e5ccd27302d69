"""Programs that forward an agent's socket: what they say when they fail, in their own words, and their end."""

from __future__ import annotations

import subprocess
from contextlib import suppress

from freezeframe.client.errors import ForwardingError

_END_S = 2.0
_MAX_WORDS = 40


def ended(process: subprocess.Popen[bytes], log: str, doing: str) -> ForwardingError:
    """Make the error for one that ended by itself; `doing` ends with its name."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    return failed(f"{doing} ended with {process.returncode}", log)


def failed(sentence: str, log: str, hint: str = "") -> ForwardingError:
    """Make an error with what the program wrote to `log`: one line in the sentence, more below it."""
    lines = _words(log)
    if len(lines) == 1:
        return ForwardingError(f"{sentence}: {lines[0]}", hint)
    return ForwardingError(f"{sentence}, and said:" if lines else sentence, hint, lines)


def read(log: str) -> bytes:
    """Give what was written to `log`; nothing when it cannot be read."""
    try:
        with open(log, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def end(process: subprocess.Popen[bytes]) -> None:
    """End it, by force if it must be."""
    for ask in (process.terminate, process.kill):
        ask()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
            return


def _words(log: str) -> tuple[str, ...]:
    lines = (line.rstrip() for line in read(log).decode("utf-8", "replace").splitlines())
    return tuple(line for line in lines if line)[-_MAX_WORDS:]
