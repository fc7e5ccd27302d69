"""Which agent a command speaks to: the one named, the local daemon, or a private one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from freezeframe.client import hosts
from freezeframe.client.config import tls_files
from freezeframe.client.connection import Agent, connect
from freezeframe.client.embedded import private_agent
from freezeframe.client.errors import AgentNotThereError, HostError
from freezeframe.client.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """An agent that answers."""

    agent: Agent
    # True when it was started for this command and ends with it.
    private: bool


@contextmanager
def reach(
    place: hosts.Place, settings: Settings, *, trust_owner: bool = False, asks: bool | None = None
) -> Iterator[Agent]:
    """Open the way to an agent, and a channel on it. Raises ClientError.

    `asks`: whether ssh may ask for a password; None = on a terminal.
    """
    with ExitStack() as stack:
        if isinstance(place, hosts.Ssh):
            from freezeframe.client.transports import ssh  # noqa: PLC0415 - for such hosts alone

            place = stack.enter_context(ssh.forwarded(place, settings.environ, terminal=asks))
        if isinstance(place, hosts.Tls):
            from freezeframe.client.transports import tls  # noqa: PLC0415 - as above

            yield stack.enter_context(tls.connected(place, tls_files(settings.config, settings.environ)))
        elif isinstance(place, hosts.Kube):
            from freezeframe.client.transports import kube  # noqa: PLC0415 - as above

            yield stack.enter_context(kube.connected(place, settings.environ))
        else:
            yield stack.enter_context(connect(place, trust_owner=trust_owner))


@contextmanager
def named_or_local(
    settings: Settings, host: str | None, role: hosts.Role, *, trust_owner: bool = False
) -> Iterator[Agent]:
    """Connect to the agent of `host`, else to the local daemon. Raises ClientError."""
    target = hosts.resolve(host, role, settings.config, settings.environ)
    if target is None:
        where = " or ".join(hosts.local_directories(settings.environ))
        raise AgentNotThereError(f"no daemon runs here: there is no socket in {where}", hosts.DAEMON_HINT)
    with reach(target, settings, trust_owner=trust_owner) as agent:
        yield agent


@contextmanager
def for_capture(
    settings: Settings, host: str | None, *, embedded: bool = False, start: bool = False, trust_owner: bool = False
) -> Iterator[Reached]:
    """Connect as above; where none is named and no daemon runs, start a private agent. Raises ClientError.

    With `start` that is done on a named host too, over ssh.
    """
    with ExitStack() as stack:
        reached = None
        if start:
            reached = _daemon_or_started(stack, settings, host)
        elif not embedded:
            reached = _daemon(stack, settings, host, trust_owner=trust_owner)
        if reached is None:
            if not embedded:
                settings.say("No daemon runs here: starting a private agent for this capture.")
            target = stack.enter_context(private_agent(settings.environ))
            reached = Reached(agent=stack.enter_context(connect(target)), private=True)
        yield reached


def _daemon(stack: ExitStack, settings: Settings, host: str | None, *, trust_owner: bool) -> Reached | None:
    target = hosts.resolve(host, "capture", settings.config, settings.environ)
    if target is None:
        return None
    try:
        agent = stack.enter_context(reach(target, settings, trust_owner=trust_owner))
    except AgentNotThereError as error:
        if host or settings.environ.get("FREEZEFRAME_HOST"):
            raise
        settings.say(f"{error}.")
        return None
    return Reached(agent=agent, private=False)


def _daemon_or_started(stack: ExitStack, settings: Settings, host: str | None) -> Reached:
    place = hosts.resolve(host, "capture", settings.config, settings.environ)
    if not isinstance(place, hosts.Ssh):
        raise HostError(
            f"--start is for a host behind ssh, and {host or 'none'} is given", "give USER@HOST or ssh://USER@HOST"
        )
    with suppress(AgentNotThereError):
        return Reached(agent=stack.enter_context(reach(place, settings)), private=False)
    from freezeframe.client.transports import started  # noqa: PLC0415 - as above

    there = stack.enter_context(started.started(place, settings.environ, settings.say))
    return Reached(agent=stack.enter_context(reach(there, settings)), private=True)
