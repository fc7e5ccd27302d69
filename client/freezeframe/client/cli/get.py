"""`freezeframe get`: a kept snapshot, saved here."""

from __future__ import annotations

import click

from freezeframe.client.cli.common import OutFile, Text, host_argument, trust_option, with_settings
from freezeframe.client.settings import Settings


@click.command("get")
@click.argument("snapshot_id", type=Text(), metavar="ID|latest")
@host_argument
@click.option("-o", "--out", "out", type=OutFile(), metavar="FILE", help="Save there.  [default: HOST-TIME.ffz]")
@trust_option
@with_settings
def command(settings: Settings, snapshot_id: str, host: str | None, out: str | None, trust_owner: bool) -> None:
    """Fetch a snapshot that the agent keeps, save it, print its verdict."""
    from freezeframe.client import agents  # noqa: PLC0415 - grpc costs start-up time

    with agents.named_or_local(settings, host, "view", trust_owner=trust_owner) as agent:
        pending = agent.get(snapshot_id)
        from freezeframe.client.cli.result import Result, deliver  # noqa: PLC0415 - while the agent works

        received = pending.receive()
    click.get_current_context().exit(deliver(settings, Result(received=received), out=out))
