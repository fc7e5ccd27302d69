"""`freezeframe rm`: a kept snapshot, deleted."""

from __future__ import annotations

import click

from freezeframe.client.cli.common import Text, host_argument, trust_option, with_settings
from freezeframe.client.settings import Settings


@click.command("rm")
@click.argument("snapshot_id", type=Text(), metavar="ID")
@host_argument
@trust_option
@with_settings
def command(settings: Settings, snapshot_id: str, host: str | None, trust_owner: bool) -> None:
    """Delete a snapshot that the agent keeps (role admin)."""
    from freezeframe.client import agents  # noqa: PLC0415 - grpc costs start-up time

    with agents.named_or_local(settings, host, "admin", trust_owner=trust_owner) as agent:
        agent.delete(snapshot_id)
    settings.say(f"Deleted {snapshot_id}.")
