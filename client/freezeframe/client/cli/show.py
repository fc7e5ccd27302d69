"""`freezeframe show`: a saved snapshot, section by section; needs no agent."""

from __future__ import annotations

import click

from freezeframe.client.cli.common import budget_option, check_budget, of_host_option, with_settings
from freezeframe.client.settings import Settings, complain

# As `render.sections` lists them, which a test checks; spelled here because that module needs protobuf.
SECTIONS = (
    "verdict", "findings", "hops", "processes", "requests", "sockets", "python", "asyncio", "native", "locks", "ranks",
    "profile", "gpus", "metrics", "logs", "kernel", "host", "outcomes", "history",
)  # fmt: skip


@click.command("show")
@click.argument("file", type=click.Path(readable=False))
@click.argument("sections", nargs=-1, type=click.Choice((*SECTIONS, "all")), metavar="[SECTION]...")
@click.option("--why", is_flag=True, help="The chain: records, facts, rules that stand or nearly do.")
@of_host_option
@budget_option
@with_settings
def command(
    settings: Settings, file: str, sections: tuple[str, ...], why: bool, host: str | None, budget: int | None
) -> None:
    """Show a snapshot FILE: its verdict, or the sections named ("all": every one).

    Sections: verdict findings hops processes requests sockets python asyncio native locks ranks profile gpus metrics
    logs kernel host outcomes history.
    """
    check_budget(settings, budget)
    from freezeframe.client import files  # noqa: PLC0415 - protobuf costs start-up time
    from freezeframe.client.cli.result import DAMAGED, display  # noqa: PLC0415

    names = SECTIONS if "all" in sections else tuple(dict.fromkeys(sections))
    opened = files.load(file, host)
    display(settings, opened, file, names, why=why, budget=budget)
    for sentence in opened.lost:
        complain(sentence)
    if opened.newer:
        settings.say(opened.newer)
    if opened.lost:
        complain(f"Error: {file} is damaged: what is shown is what is whole of it")
        click.get_current_context().exit(DAMAGED)
