"""`freezeframe snap`: capture, save, print the verdict."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from freezeframe.client.cli.common import (
    OutFile,
    Seconds,
    Text,
    budget_option,
    check_budget,
    trust_option,
    with_settings,
)
from freezeframe.client.settings import Settings

if TYPE_CHECKING:
    from freezeframe.v1 import service_pb2

_DEADLINE_S = 5.0
_MAX_UINT32 = 2**32 - 1
# What a capture needs beside the time between its looks.
_BESIDE_WINDOW_S = 4.0
# What a profile needs with the unwinding of its samples, as a multiple of its length.
_PROFILE_SHARE = 1.5

# Named here for shell completion alone: the agent says what it knows.
COLLECTORS = (
    "snapshot_processes",
    "snapshot_python_stacks",
    "snapshot_sockets",
    "sample_metrics",
    "read_gauges",
    "read_logs",
    "snapshot_host",
)


def _collector_names(_ctx: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip() for item in value for name in item.split(",") if name.strip())
    if value and not names:
        raise click.BadParameter("it names no collector.")
    return names


def _client(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise click.BadParameter("it names no client.")
    if value is not None and value.isdecimal() and int(value) > _MAX_UINT32:
        raise click.BadParameter(f"{value} is no pid.")
    return value


def _complete_collector(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in COLLECTORS if name.startswith(incomplete)]


@click.command("snap")
@click.argument("hosts", nargs=-1, metavar="[HOST]...")
@click.option("--group", "groups", type=Text(), multiple=True, metavar="NAME", help="The hosts of this group, too.")
@click.option("--window", type=Seconds(), metavar="S", help="Time between the two looks; 0 = one look.  [default: 1]")
@click.option("--deadline", type=Seconds(0.1), metavar="S", help="Time for the capture.  [default: 5]")
@click.option(
    "-p", "--pid", "pids", type=click.IntRange(1, _MAX_UINT32), multiple=True, help="Only these, and their peers."
)
@click.option("--client", type=Text(), callback=_client, metavar="PID|ADDR", help="The client whose requests matter.")
@click.option(
    "--only", type=Text(), multiple=True, metavar="COLLECTOR", callback=_collector_names,
    shell_complete=_complete_collector, help="Run these collectors alone (commas or repeated).",
)  # fmt: skip
@click.option(
    "--skip", type=Text(), multiple=True, metavar="COLLECTOR", callback=_collector_names,
    shell_complete=_complete_collector, help="Leave these collectors out.",
)  # fmt: skip
@click.option(
    "--profile", "profile", type=Seconds(), default=0.0, metavar="S", help="Sample what the threads run, for so long."
)
@click.option("--note", type=Text(), default="", help="Kept with the snapshot.")
@click.option("-o", "--out", "out", type=OutFile(), metavar="FILE", help="Save there.  [default: HOST-TIME.ffz]")
@click.option("--embedded", is_flag=True, help="Use a private agent, started for this capture.")
@click.option("--start", is_flag=True, help="Where HOST (over ssh, as root) has no agent, run one for this capture.")
@click.option("--fail-on-stuck", is_flag=True, help="Exit with 10 when the verdict is that something is stuck.")
@budget_option
@trust_option
@with_settings
def command(
    settings: Settings,
    hosts: tuple[str, ...],
    groups: tuple[str, ...],
    window: float | None,
    deadline: float | None,
    pids: tuple[int, ...],
    client: str | None,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    profile: float,
    note: str,
    out: str | None,
    embedded: bool,
    start: bool,
    fail_on_stuck: bool,
    budget: int | None,
    trust_owner: bool,
) -> None:
    """Capture HOST (default: this machine), save the snapshot, print the verdict.

    HOST is a name of the configuration, USER@HOST or ssh://HOST (over OpenSSH), tls://HOST:PORT, kube://NAMESPACE/POD,
    or unix:PATH. Without a daemon here a private agent is started for this capture.

    Several hosts, a node set ("gpu-[01-32]") or a --group are captured at one instant, into one file, and judged
    together.
    """
    if embedded and (hosts or groups):
        raise click.UsageError("--embedded captures this machine: leave HOST out")
    if start and not (hosts or groups):
        raise click.UsageError("--start is for another host: name one")
    check_budget(settings, budget)
    # Imported here: grpc and protobuf cost start-up time that other commands need not pay.
    from freezeframe.client import agents  # noqa: PLC0415

    window = settings.config.window_s if window is None else window
    deadline = (
        deadline
        or settings.config.deadline_s
        or max(_DEADLINE_S, max(window or 0.0, profile * _PROFILE_SHARE) + _BESIDE_WINDOW_S)
    )
    request = _request(window, deadline, pids=pids, client=client, only=only, skip=skip, note=note)
    request.profile_s = profile
    colored = settings.colored(terminal=sys.stderr.isatty())
    from freezeframe.client import node_sets  # noqa: PLC0415

    named = node_sets.expand(hosts, groups, settings.config.groups)
    if len(named) > 1 or groups:
        if start:
            raise click.UsageError("--start is for one host at a time")
        if pids or (client is not None and client.isdecimal()):
            option = "-p" if pids else "--client"
            raise click.UsageError(
                f"{option}: a pid is one host's: capture that host alone, or give --client the client's address"
            )
        from freezeframe.client.cli import many  # noqa: PLC0415

        code = many.deliver(
            settings, named, request, deadline, out=out, budget=budget, fail_on_stuck=fail_on_stuck,
            trust_owner=trust_owner,
        )  # fmt: skip
        click.get_current_context().exit(code)
    host = named[0] if named else None
    with agents.for_capture(settings, host, embedded=embedded, start=start, trust_owner=trust_owner) as reached:
        pending = reached.agent.capture(request, deadline)
        # While the agent works.
        from freezeframe.client import progress  # noqa: PLC0415
        from freezeframe.client.cli.result import Result, deliver  # noqa: PLC0415

        with progress.shown(quiet=settings.quiet, color=colored) as show:
            received = pending.receive(show)
        result = Result(received=received, private=reached.private)
    code = deliver(settings, result, out=out, budget=budget, fail_on_stuck=fail_on_stuck)
    click.get_current_context().exit(code)


def _request(
    window: float | None,
    deadline: float,
    *,
    pids: tuple[int, ...],
    client: str | None,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    note: str,
) -> service_pb2.CaptureRequest:
    from freezeframe.judge import SCHEMA  # noqa: PLC0415
    from freezeframe.v1 import service_pb2  # noqa: PLC0415

    request = service_pb2.CaptureRequest(
        deadline_ms=deadline * 1000.0, pids=pids, only=only, skip=skip, note=note, schema=SCHEMA
    )
    if window is not None:
        request.window_ms = window * 1000.0
    if client is not None and client.isdecimal():
        request.client_pid = int(client)
    elif client:
        request.client_address = client
    return request
