"""`freezeframe pin`: a kept snapshot, kept until it is unpinned."""

from __future__ import annotations

import click

from freezeframe.client.cli.common import Text, host_argument, trust_option, with_settings
from freezeframe.client.settings import Settings


@click.command("pin")
@click.argument("snapshot_id", type=Text(), metavar="ID")
@host_argument
@click.option("--unpin", is_flag=True, help="Let it go again when the store is full.")
@trust_option
@with_settings
def command(settings: Settings, snapshot_id: str, host: str | None, unpin: bool, trust_owner: bool) -> None:
    """Keep a snapshot of the agent's whatever its store's limits are (role capture)."""
    from freezeframe.client import agents  # noqa: PLC0415 - grpc costs start-up time

    with agents.named_or_local(settings, host, "capture", trust_owner=trust_owner) as agent:
        agent.pin(snapshot_id, pinned=not unpin)
    settings.say(f"{'Unpinned' if unpin else 'Pinned'} {snapshot_id}.")
