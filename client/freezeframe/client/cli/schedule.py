"""`freezeframe schedule`: captures that an agent makes by itself, at times or when a condition holds."""

from __future__ import annotations

import click

from freezeframe.client.cli.common import Duration, Text, host_argument, trust_option, with_settings
from freezeframe.client.settings import Settings, emit


@click.group("schedule")
def command() -> None:
    """Captures that an agent makes by itself."""


@command.command("add")
@click.argument("name", type=Text())
@host_argument
@click.option("--every", type=Duration(), metavar="TIME", help="Capture every so often: 90, 10m, 1h.")
@click.option("--cron", type=Text(), metavar="EXPR", help='Capture at these times of the host: "*/10 * * * *".')
@click.option(
    "--when",
    type=Text(),
    metavar="CONDITION",
    help=(
        "Capture when it holds, and again 5 and 30 s later: stuck-for=30s, no-tokens-for=30s, backlog, xid, "
        'process-stopped, process-exit, psi=memory>40, or an expression such as "requests > 50 and answer_bytes == 0".'
    ),
)
@click.option("--jitter", type=Duration(), default=0.0, metavar="TIME", help="Put a time off by up to so much.")
@click.option(
    "--missed",
    type=click.Choice(("skip", "once")),
    default="skip",
    help="What becomes of a time that passed while the agent was down.  [default: skip]",
)
@click.option("--keep", type=click.IntRange(0, 1_000_000), default=0, help="Keep the last so many snapshots of it.")
@click.option("--hold", type=Duration(), default=0.0, metavar="TIME", help="The condition has to hold for so long.")
@click.option("--clear", type=Duration(), metavar="TIME", help="... be false so long to fire again.  [default: 10]")
@click.option("--cool-down", type=Duration(), metavar="TIME", help="... fire at most so often.  [default: 300]")
@click.option("--window", type=Duration(), metavar="TIME", help="Time between the two looks of a capture.")
@click.option("--deadline", type=Duration(), metavar="TIME", help="Time for one capture.")
@click.option("--only", multiple=True, type=Text(), metavar="COLLECTOR", help="Only this collector; repeatable.")
@click.option("--skip", multiple=True, type=Text(), metavar="COLLECTOR", help="Not this collector; repeatable.")
@click.option("--note", type=Text(), default="", metavar="TEXT", help="Kept with each snapshot.")
@trust_option
@with_settings
def add(
    settings: Settings,
    name: str,
    host: str | None,
    every: float | None,
    cron: str | None,
    when: str | None,
    jitter: float,
    missed: str,
    keep: int,
    hold: float,
    clear: float | None,
    cool_down: float | None,
    window: float | None,
    deadline: float | None,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    note: str,
    trust_owner: bool,
) -> None:
    """Add the schedule NAME, or replace it (role admin). Exactly one of --every, --cron and --when says when."""
    if sum(given is not None for given in (every, cron, when)) != 1 or "" in (cron, when):
        raise click.UsageError("give exactly one of --every, --cron and --when")
    if every is not None and every < 1:
        raise click.UsageError("--every takes a second or more")
    from freezeframe.client import agents  # noqa: PLC0415 - grpc costs start-up time
    from freezeframe.v1 import service_pb2  # noqa: PLC0415

    wanted = service_pb2.Schedule(
        name=name,
        interval_s=every or 0.0,
        cron=cron or "",
        when=when or "",
        jitter_s=jitter,
        missed=missed,
        keep=keep,
        hold_s=hold,
        clear_s=clear,
        cool_down_s=cool_down,
        capture=service_pb2.CaptureRequest(
            window_ms=None if window is None else window * 1000.0,
            deadline_ms=None if deadline is None else deadline * 1000.0,
            only=only,
            skip=skip,
            note=note,
        ),
    )
    with agents.named_or_local(settings, host, "admin", trust_owner=trust_owner) as agent:
        agent.put_schedule(wanted)
    settings.say(f"Added {name}. What it captures: freezeframe list --schedule {name}")


@command.command("list")
@host_argument
@trust_option
@with_settings
def show(settings: Settings, host: str | None, trust_owner: bool) -> None:
    """List what the agent captures by itself."""
    from freezeframe.client import agents  # noqa: PLC0415 - grpc costs start-up time
    from freezeframe.client.render import json, markdown, schedules, text  # noqa: PLC0415

    with agents.named_or_local(settings, host, "view", trust_owner=trust_owner) as agent:
        answer = agent.schedules()
    if settings.output == "json":
        emit(json.stream(answer), utf8=True)
    elif settings.output == "brief":
        emit(schedules.brief(answer))
    elif settings.output == "markdown":
        emit((markdown.render(schedules.page(answer)),), utf8=True)
    else:
        emit((text.render(schedules.page(answer), settings.style()),))


@command.command("rm")
@click.argument("name", type=Text())
@host_argument
@trust_option
@with_settings
def remove(settings: Settings, name: str, host: str | None, trust_owner: bool) -> None:
    """Remove the schedule NAME (role admin); what it captured stays."""
    from freezeframe.client import agents  # noqa: PLC0415 - grpc costs start-up time

    with agents.named_or_local(settings, host, "admin", trust_owner=trust_owner) as agent:
        agent.delete_schedule(name)
    settings.say(f"Removed {name}.")
