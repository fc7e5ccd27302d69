"""`freezeframe watch`: the hops live."""

from __future__ import annotations

import sys

import click

from freezeframe.client.cli.common import Seconds, host_argument, trust_option, with_settings
from freezeframe.client.settings import Settings, emit

_INTERVAL_S = 1.0


@click.command("watch")
@host_argument
@click.option("--interval", type=Seconds(0.5), default=_INTERVAL_S, metavar="S", help="Time between two looks.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N looks.")
@trust_option
@with_settings
def command(settings: Settings, host: str | None, interval: float, count: int | None, trust_owner: bool) -> None:
    """Show requests in flight, bytes and ages of every edge, once a second, until interrupted.

    A table that renews itself on a terminal; elsewhere a line per edge and look.
    """
    from freezeframe.client import agents  # noqa: PLC0415 - grpc costs start-up time
    from freezeframe.client.render import json, live  # noqa: PLC0415

    with agents.named_or_local(settings, host, "view", trust_owner=trust_owner) as agent:
        looks = agent.watch(interval)
        screen = live.screen(sys.stdout) if settings.output == "text" and sys.stdout.isatty() else None
        try:
            for number, look in enumerate(looks, start=1):
                if screen is not None:
                    screen.show(look)
                elif settings.output == "json":
                    emit((f"{json.line(look)}\n",), utf8=True)
                else:
                    emit(f"{line}\n" for line in live.lines(look))
                if number == count:
                    break
        finally:
            if screen is not None:
                screen.stop()
            looks.close()
