"""What a command of the agent's prints as its result."""

from __future__ import annotations

import os
import sys

import click


def tell(text: str) -> None:
    """Write lines on standard output; where nothing can be written, say so and exit 1."""
    try:
        click.echo(text)
    except BrokenPipeError:
        # Whoever reads has enough.
        _discard()
    except OSError as error:
        _discard()
        click.echo(f"freezeframe-agentd: writing to standard output: {error.strerror}", err=True)
        sys.exit(1)


def _discard() -> None:
    """Write nothing more: what Python flushes at exit must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
