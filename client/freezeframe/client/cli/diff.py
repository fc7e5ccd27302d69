"""`freezeframe diff`: what changed between two snapshots; needs no agent."""

from __future__ import annotations

import click

from freezeframe.client.cli.common import budget_option, check_budget, with_settings
from freezeframe.client.settings import Settings, complain, emit


@click.command("diff")
@click.argument("first", type=click.Path(readable=False), metavar="A")
@click.argument("second", type=click.Path(readable=False), metavar="B")
@budget_option
@with_settings
def command(settings: Settings, first: str, second: str, budget: int | None) -> None:
    """Compare two snapshot files of one host: requests, processes, stacks, numbers, connections, verdict.

    They are compared in the order of their time. What one of them did not look at is never called gone.
    """
    check_budget(settings, budget)
    from freezeframe.client import compared  # noqa: PLC0415 - protobuf costs start-up time
    from freezeframe.client.cli.result import DAMAGED  # noqa: PLC0415
    from freezeframe.client.render import comparison, markdown, text  # noqa: PLC0415

    both = compared.load(first, second)
    share = budget // len(both.comparisons) if budget is not None else None
    pages = [comparison.page(each) for each in both.comparisons]
    if both.together:
        pages.insert(0, comparison.together(*both.together))
    if settings.output == "json":
        emit(comparison.to_json(both.comparisons), utf8=True)
    elif settings.output == "markdown":
        emit((markdown.render(page, share) for page in pages), utf8=True)
    elif settings.output == "brief":
        emit(comparison.brief(each, ascii_only=settings.style().ascii) for each in both.comparisons)
    else:
        emit(text.render(page, settings.style(), share) for page in pages)
    for sentence in both.sentences:
        complain(sentence)
    if both.damaged:
        complain("Error: a file is damaged: what is compared is what is whole of it")
        click.get_current_context().exit(DAMAGED)
