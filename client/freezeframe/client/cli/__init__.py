"""The command line: one file per command, listed here."""

from __future__ import annotations

import errno
import resource
import signal
import sys
from typing import Any

import click

from freezeframe.client.cli import (
    completion,
    diff,
    doctor,
    export,
    get,
    mcp,
    pin,
    report,
    rm,
    schedule,
    show,
    snap,
    snapshots,
    watch,
    where,
)
from freezeframe.client.cli.common import Options, common_options
from freezeframe.client.errors import ClientError, FileError, SaveError
from freezeframe.client.settings import complain, discard_stdout, open_closed_streams

_INTERRUPTED = 130
_TERMINATED = 143
# What a write can end with, a broken pipe apart.
_STDOUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

COMMANDS: tuple[click.Command, ...] = (
    snap.command,
    show.command,
    diff.command,
    export.command,
    report.command,
    where.command,
    watch.command,
    snapshots.command,
    get.command,
    pin.command,
    rm.command,
    schedule.command,
    doctor.command,
    mcp.command,
    completion.command,
)


# No snapshot that was captured needs a tenth of it.
_MEMORY_BYTES = 2 * 1024 * 1024 * 1024


class _Group(click.Group):
    """Turns errors into sentences on stderr and into exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClientError as error:
            complain(f"Error: {error}")
            for line in error.words:
                complain(f"  {line}")
            if error.hint:
                complain(f"Hint: {error.hint}")
            ctx.exit(error.exit_code)
        except MemoryError:
            complain(f"Error: the snapshot needs more memory than the {_MEMORY_BYTES >> 30} GiB that it gets")
            complain("Hint: show one section, such as: freezeframe show FILE verdict")
            ctx.exit(FileError.exit_code)
        except KeyboardInterrupt:
            complain("Interrupted.")
            ctx.exit(_INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)


def _version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version  # noqa: PLC0415 - for this option alone

        click.echo(f"freezeframe {version('freezeframe')}")
        ctx.exit()


@click.group(
    cls=_Group,
    commands={command.name or "": command for command in COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Exit codes: 0 done, 2 usage, 3 no agent or refused, 4 in part, 5 file damaged or too new, "
        "10 stuck (with --fail-on-stuck), 130 interrupted."
    ),
)
@common_options
@click.option("--config", type=click.Path(), metavar="FILE", help="Read this configuration instead of the usual files.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Say the version.")
@click.pass_context
def cli(ctx: click.Context, output: str | None, color: str | None, quiet: bool, config: str | None) -> None:
    """Freeze one instant of a host that serves language models: who is stuck, on what, and which hop holds it."""
    ctx.obj = Options(output=output, color=color, quiet=quiet, config=config)


def _bound_memory() -> None:
    """A file can come from anybody: one that unpacks to more than any host has must end this client, not the host."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or soft > _MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, hard))


def main() -> None:
    """Run the command line."""
    # An end in order: a private agent and its directory go too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    open_closed_streams()
    _bound_memory()
    try:
        cli(prog_name="freezeframe")
    except OSError as error:
        if error.errno not in _STDOUT_ERRORS or error.filename is not None:
            raise
        # What click itself prints: help, version.
        complain(f"Error: writing to stdout: {error.strerror}")
        discard_stdout()
        sys.exit(SaveError.exit_code)
