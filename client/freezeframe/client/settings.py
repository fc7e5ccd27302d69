"""What holds for every command: output, colour, quiet, configuration; and the edge that prints.

Only this module and `progress` write to the terminal.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from freezeframe.client.config import Config
from freezeframe.client.errors import SaveError

if TYPE_CHECKING:
    from freezeframe.client.render.style import Style

Output = Literal["text", "json", "markdown", "brief"]
Color = Literal["auto", "always", "never"]

# Prose in longer lines is hard to read.
_WIDEST_PROSE = 100
_NOT_A_TERMINAL = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options that every command takes, over the configuration."""

    output: Output
    color: Color
    quiet: bool
    config: Config
    environ: Mapping[str, str]

    def style(self) -> Style:
        """Say how text may look on stdout."""
        from freezeframe.client.render.style import Style  # noqa: PLC0415 - commands without text need none

        terminal = sys.stdout.isatty()
        # In a pipe, whoever sets COLUMNS to less than usual wants that width; more is what a shell tells its children.
        columns = self.environ.get("COLUMNS", "")
        asked = terminal or columns in map(str, range(1, _NOT_A_TERMINAL))
        width = shutil.get_terminal_size((_NOT_A_TERMINAL, 24)).columns if asked else _NOT_A_TERMINAL
        return Style(
            color=self.colored(terminal=terminal),
            ascii=not _can_encode("▸…", sys.stdout.encoding),
            width=min(width, _WIDEST_PROSE),
            # A pipe gets every column whole otherwise: grep and awk come next.
            table_width=width if asked else None,
        )

    def colored(self, *, terminal: bool) -> bool:
        """Say whether to colour an output that is a terminal, or is none."""
        if self.color != "auto":
            return self.color == "always"
        return terminal and not self.environ.get("NO_COLOR") and self.environ.get("TERM") != "dumb"

    def say(self, sentence: str) -> None:
        """Tell something on stderr, unless quiet."""
        if not self.quiet:
            complain(sentence)


def complain(sentence: str) -> None:
    """Tell something on stderr, quiet or not."""
    from freezeframe.client.render.guard import clean  # noqa: PLC0415 - as above

    text = clean(sentence)
    encoding = sys.stderr.encoding or "ascii"
    # On a full disk the exit code still says it.
    with contextlib.suppress(OSError):
        sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stderr.flush()


def emit(pieces: Iterable[str], *, utf8: bool = False) -> None:
    """Write a result on stdout, in its encoding or in UTF-8. Raises SaveError when it cannot be written."""
    encoding = "utf-8" if utf8 else sys.stdout.encoding or "ascii"
    emit_bytes(piece.encode(encoding, "backslashreplace") for piece in pieces)


def emit_bytes(pieces: Iterable[bytes]) -> None:
    """Write a result on stdout as it is. Raises SaveError when it cannot be written."""
    try:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Whoever reads has enough.
        discard_stdout()
    except OSError as error:
        discard_stdout()
        raise SaveError(f"writing the result to stdout: {error.strerror}") from error


def discard_stdout() -> None:
    """Write nothing more: what Python flushes at exit must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_closed_streams() -> None:
    """Lead standard streams that came closed (`2>&-`) to /dev/null: the next file opened would take their place."""
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            # The lowest free one: that which was closed.
            if (opened := os.open(os.devnull, os.O_RDWR)) != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


def _can_encode(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
