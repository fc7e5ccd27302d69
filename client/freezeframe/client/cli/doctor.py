"""`freezeframe doctor`: what the agent can and cannot see here, and what mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from freezeframe.client.cli.common import host_argument, trust_option, with_settings
from freezeframe.client.settings import Settings, emit

if TYPE_CHECKING:
    from freezeframe.v1 import service_pb2

_NO_AGENT = 3


@click.command("doctor")
@host_argument
@trust_option
@with_settings
def command(settings: Settings, host: str | None, trust_owner: bool) -> None:
    """Say what the agent can and cannot see, and the command that mends each.

    Where no agent runs: what this machine lacks to run one.
    """
    from freezeframe.client import agents, errors  # noqa: PLC0415 - grpc costs start-up time

    try:
        with agents.named_or_local(settings, host, "view", trust_owner=trust_owner) as agent:
            _show(settings, agent.capabilities())
    except errors.AgentNotThereError as error:
        if host or settings.environ.get("FREEZEFRAME_HOST"):
            raise
        settings.say(f"{error}.")
        settings.say(f"Hint: {error.hint}")
    else:
        return
    try:
        with agents.for_capture(settings, None, embedded=True) as reached:
            settings.say("This is what a private agent, run by you, can see.")
            _show(settings, reached.agent.capabilities())
    except errors.AgentError as error:
        from freezeframe.client import machine  # noqa: PLC0415 - for this case alone

        settings.say(f"{error}.")
        _show(settings, machine.capabilities())
    click.get_current_context().exit(_NO_AGENT)


def _show(settings: Settings, answer: service_pb2.GetCapabilitiesResponse) -> None:
    from freezeframe.client.render import capabilities, json, markdown, text  # noqa: PLC0415

    if settings.output == "json":
        emit(json.stream(answer), utf8=True)
    elif settings.output == "markdown":
        emit((markdown.render(capabilities.page(answer)),), utf8=True)
    elif settings.output == "brief":
        emit(capabilities.brief(answer))
    else:
        emit((text.render(capabilities.page(answer), settings.style()),))
