"""`freezeframe export`: a saved snapshot for the viewers and databases people use; needs no agent."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterable
from itertools import chain

import click

from freezeframe.client.cli.common import OutFile, keep_input, of_host_option, with_settings
from freezeframe.client.settings import Settings, complain

if typing.TYPE_CHECKING:
    from freezeframe.client import files

# Forms of stacks: of a profile, or of one instant.
STACKS = ("speedscope", "folded", "pprof")
FORMATS = (*STACKS, "perfetto", "parquet", "otlp")
_BINARY = ("pprof", "perfetto")


@click.command("export")
@click.argument("file", type=click.Path(readable=False))
@click.option("--to", "form", type=click.Choice(FORMATS), required=True, help="Format.")
@click.option(
    "--of",
    "subject",
    type=click.Choice(("profile", "stacks")),
    help="Of stacks: the profile, or all threads and tasks.  [default: the profile where there is one]",
)
@click.option("-o", "--out", "out", type=OutFile(), metavar="OUT", help="Save there.  [default: stdout]")
@of_host_option
@with_settings
def command(settings: Settings, file: str, form: str, subject: str | None, out: str | None, host: str | None) -> None:
    """Write a snapshot FILE for other programs.

    Stacks of all threads and asyncio tasks, or what `snap --profile` sampled: speedscope.app (speedscope),
    flamegraph.pl (folded), pprof.

    The whole: ui.perfetto.dev (perfetto). Tables in the folder OUT, where many snapshots add up, for DuckDB, Spark and
    Trino (parquet; needs pip install 'freezeframe[export]'). The verdict as an OpenTelemetry log in JSON (otlp).
    """
    if subject and form not in STACKS:
        raise click.UsageError(f"--of chooses stacks: {form} has everything")
    if form == "parquet" and out is None:
        raise click.UsageError("parquet's form is a folder of files: name it with -o")
    if form in _BINARY and out is None and sys.stdout.isatty():
        raise click.UsageError(f"{form}'s form is binary: name a file with -o, or use a pipe")
    keep_input(file, out)
    from freezeframe.client import files  # noqa: PLC0415 - protobuf costs start-up time
    from freezeframe.client.cli.result import DAMAGED  # noqa: PLC0415
    from freezeframe.client.settings import emit_bytes  # noqa: PLC0415

    opened = files.load(file, host)
    if form == "parquet" and out is not None:
        _write_tables(settings, opened, out)
    else:
        pieces = _stacks(opened, form, subject) if form in STACKS else _whole(opened, form)
        if out is None:
            emit_bytes(pieces)
        else:
            settings.say(files.write_pieces(pieces, out))
    for sentence in opened.lost:
        complain(sentence)
    if opened.lost:
        complain(f"Error: {file} is damaged: what is exported is what is whole of it")
        click.get_current_context().exit(DAMAGED)


def _stacks(opened: files.Opened, form: str, subject: str | None) -> Iterable[bytes]:
    from freezeframe.client.errors import NothingToExportError  # noqa: PLC0415
    from freezeframe.client.export import folded, pprof, speedscope, stacks  # noqa: PLC0415

    snapshots = opened.all_at_once("exporting")
    has_profile = any(snapshot.profile for snapshot in snapshots)
    wanted = subject or ("profile" if has_profile else "stacks")
    chosen = (stacks.profile if wanted == "profile" else stacks.instant)(snapshots)
    if not chosen.stacks:
        raise NothingToExportError(
            f"exporting {opened.name}: there is no {'profile' if wanted == 'profile' else 'stack'} in it",
            "freezeframe snap --profile 5" if wanted == "profile" else f"freezeframe show {opened.name} outcomes",
        )
    if form == "pprof":
        return [pprof.render(chosen)]
    return (piece.encode() for piece in (speedscope if form == "speedscope" else folded).render(chosen))


def _whole(opened: files.Opened, form: str) -> Iterable[bytes]:
    from freezeframe.client import fleets  # noqa: PLC0415
    from freezeframe.client.export import across, otlp, perfetto  # noqa: PLC0415

    if form == "perfetto":
        fleet = fleets.judge(opened)
        ways = () if fleet is None else tuple(across.ways(fleet))
        # What all hosts say together is no longer needed.
        del fleet
        return perfetto.render(opened.each(), [part.ahead_ms for part in opened.manifest.hosts], ways)
    together = fleets.together(opened)
    return [otlp.render(chain(() if together is None else (together,), opened.each(("findings",))))]


def _write_tables(settings: Settings, opened: files.Opened, folder: str) -> None:
    from freezeframe.client import files  # noqa: PLC0415
    from freezeframe.client.errors import ExportExtraMissingError  # noqa: PLC0415

    try:
        from freezeframe.client.export import parquet  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        raise ExportExtraMissingError(
            "writing Parquet needs a package that is not installed: pyarrow", "pip install 'freezeframe[export]'"
        ) from error
    for name, data in parquet.render(opened.each()):
        files.write_below(data, folder, name)
    settings.say(folder)
