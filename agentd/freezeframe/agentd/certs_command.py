"""`freezeframe-agentd certs`: makes the certificates of the listener for other hosts and of those who call it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from freezeframe.agentd.errors import CertificateError
from freezeframe.agentd.roles import Role
from freezeframe.agentd.stdout import tell

_DIRECTORY = "/etc/freezeframe/tls"
_AUTHORITY_DAYS = 3650
_DAYS = 365

_directory = click.option(
    "--dir", "directory", default=_DIRECTORY, show_default=True, metavar="DIR", help="Directory of the authority."
)
_force = click.option("--force", is_flag=True, help="Replace what is there.")


def _days(default: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--days", type=click.IntRange(1, 36500), default=default, show_default=True, help="How long it is valid."
    )


@click.group("certs")
def command() -> None:
    """Make certificates: an authority, agents', clients'."""


@command.command("init")
@_directory
@_days(_AUTHORITY_DAYS)
@_force
def init(directory: str, days: int, force: bool) -> None:
    """Make an authority: ca.crt goes to everybody, ca.key to nobody."""
    from freezeframe.agentd import certs  # noqa: PLC0415 - the daemon itself need not load cryptography

    _tell(lambda: certs.init(directory, days=days, force=force))


@command.command("issue")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--role", type=click.Choice([role.label for role in Role]),
    help="For a client of this name, in this role; without it, for the agent of these host names and addresses.",
)  # fmt: skip
@_directory
@click.option("--out", metavar="DIR", help="Where to write.  [default: DIR of the authority, then the first NAME]")
@_days(_DAYS)
@_force
def issue(names: tuple[str, ...], role: str | None, directory: str, out: str | None, days: int, force: bool) -> None:
    """Issue agent.crt and agent.key, or with --role client.crt and client.key, with a copy of ca.crt.

    A client's files belong into ~/.config/freezeframe on the machine of whoever it is for.
    """
    from freezeframe.agentd import certs  # noqa: PLC0415 - as above

    if role is not None and len(names) > 1:
        raise click.UsageError("a client has one NAME")
    place = out or f"{directory}/{names[0].replace('/', '_').lstrip('.')}"
    if role is None:
        _tell(lambda: certs.issue_agent(directory, names, out=place, days=days, force=force))
    else:
        _tell(lambda: certs.issue_client(directory, names[0], Role[role.upper()], out=place, days=days, force=force))


def _tell(make: Callable[[], tuple[str, ...]]) -> None:
    try:
        written = make()
    except CertificateError as error:
        click.echo(f"freezeframe-agentd: {error.detail}", err=True)
        if error.hint:
            click.echo(f"freezeframe-agentd: {error.hint}", err=True)
        sys.exit(1)
    tell("\n".join(written))
