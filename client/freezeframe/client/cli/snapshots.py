"""`freezeframe list`: the snapshots that an agent keeps."""

from __future__ import annotations

import click

from freezeframe.client.cli.common import host_argument, trust_option, with_settings
from freezeframe.client.settings import Settings, emit


@click.command("list")
@host_argument
@click.option("--limit", type=click.IntRange(1, 2**32 - 1), default=100, show_default=True, help="At most so many.")
@trust_option
@with_settings
def command(settings: Settings, host: str | None, limit: int, trust_owner: bool) -> None:
    """List the snapshots that the agent keeps, newest first."""
    from freezeframe.client import agents  # noqa: PLC0415 - grpc costs start-up time
    from freezeframe.client.render import json, kept, markdown, text  # noqa: PLC0415

    with agents.named_or_local(settings, host, "view", trust_owner=trust_owner) as agent:
        answer = agent.kept(limit)
    if settings.output == "json":
        emit(json.stream(answer), utf8=True)
    elif settings.output == "brief":
        emit(kept.brief(answer))
    elif settings.output == "markdown":
        emit((markdown.render(kept.page(answer)),), utf8=True)
    else:
        emit((text.render(kept.page(answer), settings.style()),))
