"""`freezeframe export`: the stacks of a saved snapshot for the viewers people use; needs no agent."""

from __future__ import annotations

import sys

import click

from freezeframe.client.cli.common import OutFile, with_settings
from freezeframe.client.settings import Settings, complain

FORMATS = ("speedscope", "folded", "pprof")


@click.command("export")
@click.argument("file", type=click.Path())
@click.option("--to", "form", type=click.Choice(FORMATS), required=True, help="Format.")
@click.option(
    "--of",
    "subject",
    type=click.Choice(("profile", "stacks")),
    help="The profile, or all threads and tasks.  [default: the profile where there is one]",
)
@click.option("-o", "--out", "out", type=OutFile(), metavar="OUT", help="Save there.  [default: stdout]")
@with_settings
def command(settings: Settings, file: str, form: str, subject: str | None, out: str | None) -> None:
    """Write the stacks of a snapshot FILE for speedscope.app, flamegraph.pl or pprof.

    They are all threads and asyncio tasks at the instant of the capture, or what `snap --profile` sampled.
    """
    if form == "pprof" and out is None and sys.stdout.isatty():
        raise click.UsageError("pprof's form is binary: name a file with -o, or use a pipe")
    from freezeframe.client import files  # noqa: PLC0415 - protobuf costs start-up time
    from freezeframe.client.cli.result import DAMAGED  # noqa: PLC0415
    from freezeframe.client.errors import NothingToExportError  # noqa: PLC0415
    from freezeframe.client.export import folded, pprof, speedscope, stacks  # noqa: PLC0415
    from freezeframe.client.settings import emit_bytes  # noqa: PLC0415

    opened = files.load(file)
    has_profile = any(snapshot.profile for snapshot in opened.snapshots)
    wanted = subject or ("profile" if has_profile else "stacks")
    chosen = (stacks.profile if wanted == "profile" else stacks.instant)(opened.snapshots)
    if not chosen.stacks:
        raise NothingToExportError(
            f"exporting {file}: there is no {'profile' if wanted == 'profile' else 'stack'} in it",
            "freezeframe snap --profile 5" if wanted == "profile" else f"freezeframe show {file} outcomes",
        )
    if form == "pprof":
        data = pprof.render(chosen)
    else:
        data = "".join((speedscope if form == "speedscope" else folded).render(chosen)).encode()
    if out is None:
        emit_bytes([data])
    else:
        settings.say(files.write(data, out))
    for sentence in opened.lost:
        complain(sentence)
    if opened.lost:
        complain(f"Error: {file} is damaged: what is exported is what is whole of it")
        click.get_current_context().exit(DAMAGED)
