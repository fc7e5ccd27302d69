"""`freezeframe diff`: what changed between two snapshots; needs no agent."""

from __future__ import annotations

import itertools

import click

from freezeframe.client.cli.common import budget_option, check_budget, of_host_option, with_settings
from freezeframe.client.settings import Settings, complain, emit


@click.command("diff")
@click.argument("first", type=click.Path(readable=False), metavar="A")
@click.argument("second", type=click.Path(readable=False), metavar="B")
@of_host_option
@budget_option
@with_settings
def command(settings: Settings, first: str, second: str, host: str | None, budget: int | None) -> None:
    """Compare two snapshot files of one host: requests, processes, stacks, numbers, connections, verdict.

    They are compared in the order of their time. What one of them did not look at is never called gone.
    """
    check_budget(settings, budget)
    from freezeframe.client import compared  # noqa: PLC0415 - protobuf costs start-up time
    from freezeframe.client.cli.result import DAMAGED  # noqa: PLC0415
    from freezeframe.client.render import comparison, markdown, text  # noqa: PLC0415

    both = compared.load(first, second, host)
    each = both.comparisons()
    share = budget // len(both.pairs) if budget is not None else None
    if settings.output == "json":
        emit(comparison.to_json(each, many=len(both.pairs) > 1), utf8=True)
    elif settings.output == "brief":
        emit(comparison.brief(one, ascii_only=settings.style().ascii) for one in each)
    else:
        together = both.together()
        head = (comparison.together(*together),) if together else ()
        pages = itertools.chain(head, map(comparison.page, each))
        if settings.output == "markdown":
            emit((markdown.render(page, share) for page in pages), utf8=True)
        else:
            emit(text.render(page, settings.style(), share) for page in pages)
    for sentence in both.sentences:
        complain(sentence)
    if both.damaged:
        complain("Error: a file is damaged: what is compared is what is whole of it")
        click.get_current_context().exit(DAMAGED)
