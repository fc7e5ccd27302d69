"""`freezeframe report`: a saved snapshot as a bug report, without secrets; needs no agent."""

from __future__ import annotations

import click

from freezeframe.client.cli.common import OutFile, keep_input, of_host_option, same_place, with_settings
from freezeframe.client.settings import Settings, complain

# As `report.forms` has them, which a test checks; spelled here because that module needs protobuf.
FORMS = ("sglang", "vllm", "smg", "dynamo")


@click.command("report")
@click.argument("file", type=click.Path(readable=False))
@click.option(
    "-o",
    "--out",
    "out",
    type=OutFile(),
    metavar="OUT",
    help="issue.md, report.html or bundle.tgz.  [default: Markdown on stdout]",
)
@click.option("--for", "project", type=click.Choice(FORMS), help="The project whose bug form it fills.")
@click.option("--no-redact", "raw", is_flag=True, help="Leave secrets in.")
@click.option(
    "--redact-map", "owners_map", type=OutFile(), metavar="MAP.json", help="Keep there what each token stands for."
)
@click.option("--anonymise", is_flag=True, help="Tokens for host names, addresses, users and directories too.")
@of_host_option
@with_settings
def command(
    settings: Settings,
    file: str,
    out: str | None,
    project: str | None,
    raw: bool,
    owners_map: str | None,
    anonymise: bool,
    host: str | None,
) -> None:
    """Write a bug report of a snapshot FILE: Markdown under 60,000 characters, redacted.

    As .html it is one page that opens offline. A .tgz, under 25 MB, holds both, the snapshot as JSON and as .ffz, its
    stacks for speedscope.app, and a manifest with digests.

    A map that is there already is used again: the same secret gets the same token in every report.
    """
    if raw and (owners_map is not None or anonymise):
        raise click.UsageError("--no-redact leaves everything in: it goes with neither --redact-map nor --anonymise")
    if out is not None and owners_map is not None and same_place(out, owners_map):
        raise click.UsageError(f"{out}: the map stays with you; name another file for the report")
    keep_input(file, out)
    from importlib.metadata import version  # noqa: PLC0415 - for a bundle alone

    from freezeframe.client import files, fleets  # noqa: PLC0415 - protobuf costs start-up time
    from freezeframe.client.cli.result import DAMAGED  # noqa: PLC0415
    from freezeframe.client.owners_map import OwnersMap  # noqa: PLC0415
    from freezeframe.client.report import bundle, forms, issue, outgoing, page  # noqa: PLC0415
    from freezeframe.client.settings import emit  # noqa: PLC0415

    opened = files.load(file)
    # Of several hosts the verdict over all stands in the report of one, too.
    chosen = opened if host is None else opened.of_host(host)
    records = chosen.all_at_once("reporting")
    together = fleets.together(opened, nameless=anonymise)
    snapshots = records if together is None else (together, *records)
    remark = "Not redacted."
    if not raw:
        kept = OwnersMap.load(owners_map)
        cleaned = outgoing.clean(snapshots, kept.key, anonymise=anonymise)
        snapshots = cleaned.snapshots
        remark = outgoing.remark(cleaned, anonymised=anonymise)
        if owners_map is not None:
            # Before the report: a token that nobody can resolve is of no use.
            settings.say(kept.save(owners_map, cleaned.tokens))
    form = forms.FORMS[project] if project else forms.PLAIN
    if out is None:
        emit([issue.render(snapshots, form, remark)], utf8=True)
    elif out.lower().endswith((".html", ".htm")):
        settings.say(files.write(page.render(snapshots, remark).encode(), out))
    else:
        data = issue.render(snapshots, form, remark).encode("utf-8", "backslashreplace")
        if out.lower().endswith((".tgz", ".tar.gz")):
            data = bundle.pack(
                snapshots[-len(records) :],
                data,
                page.render(snapshots, remark).encode(),
                remark,
                f"freezeframe {version('freezeframe')}",
                fleet=None if together is None else fleets.manifest_of(snapshots[0]),
            )
        settings.say(files.write(data, out))
    lost = dict.fromkeys((*opened.lost, *chosen.lost))
    for sentence in lost:
        complain(sentence)
    if lost:
        complain(f"Error: {file} is damaged: what is reported is what is whole of it")
        click.get_current_context().exit(DAMAGED)
