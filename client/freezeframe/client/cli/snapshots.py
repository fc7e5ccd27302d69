"""`freezeframe list`: the snapshots that an agent keeps."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import click

from freezeframe.client.cli.common import Duration, Text, host_argument, trust_option, with_settings
from freezeframe.client.settings import Settings, emit


class Moment(click.types.StringParamType):
    """A moment: RFC 3339, or how long ago."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Give it with a zone; one without is the local one."""
        try:
            # Python 3.10 reads no Z.
            return datetime.fromisoformat(str(value).replace("Z", "+00:00")).astimezone()
        except (ValueError, OverflowError):
            ago = timedelta(seconds=Duration().convert(value, param, ctx))
        try:
            return datetime.now(timezone.utc) - ago
        except OverflowError:
            self.fail(f"{value!r} ago was before the year 1.", param, ctx)


@click.command("list")
@host_argument
@click.option("--limit", type=click.IntRange(1, 2**32 - 1), default=100, show_default=True, help="At most so many.")
@click.option("--since", type=Moment(), metavar="TIME", help="Taken since: 2h (ago), or 2026-11-30T14:00:00Z.")
@click.option("--until", type=Moment(), metavar="TIME", help="Taken before: the same.")
@click.option("--trigger", type=Text(), metavar="TEXT", help='Asked for by: "snap", "schedule", "stuck-for" ...')
@click.option("--schedule", type=Text(), metavar="NAME", help="Of this schedule.")
@click.option("--verdict", type=Text(), metavar="CODE", help="With this code, such as ROUTER_HOLDS.")
@click.option("--note", type=Text(), metavar="TEXT", help="With this in its note.")
@trust_option
@with_settings
def command(
    settings: Settings,
    host: str | None,
    limit: int,
    since: datetime | None,
    until: datetime | None,
    trigger: str | None,
    schedule: str | None,
    verdict: str | None,
    note: str | None,
    trust_owner: bool,
) -> None:
    """List the snapshots that the agent keeps, newest first."""
    from freezeframe.client import agents  # noqa: PLC0415 - grpc costs start-up time
    from freezeframe.client.render import json, kept, markdown, text  # noqa: PLC0415

    wanted = kept.Wanted(since=since, until=until, trigger=trigger, schedule=schedule, verdict=verdict, note=note)
    with agents.named_or_local(settings, host, "view", trust_owner=trust_owner) as agent:
        answer = kept.chosen(agent.kept(0 if wanted.something() else limit), wanted, limit)
    # A newer agent may know it: it is looked for all the same.
    if not answer.snapshots and (unknown := kept.unknown_code(wanted)):
        settings.say(f"Hint: {unknown}")
    if settings.output == "json":
        emit(json.stream(answer), utf8=True)
    elif settings.output == "brief":
        emit(kept.brief(answer))
    elif settings.output == "markdown":
        emit((markdown.render(kept.page(answer, wanted)),), utf8=True)
    else:
        emit((text.render(kept.page(answer, wanted), settings.style()),))
