"""`freezeframe where`: which hop has one request."""

from __future__ import annotations

import contextlib
import os

import click

from freezeframe.client.cli.common import Seconds, trust_option, with_settings
from freezeframe.client.settings import Settings, complain, emit

_DEADLINE_S = 5.0


@click.command("where")
@click.argument("request_id")
@click.argument("sources", nargs=-1, metavar="[FILE|HOST...]")
@click.option("--deadline", type=Seconds(0.1), default=_DEADLINE_S, metavar="S", help="Time for a capture.")
@click.option("--embedded", is_flag=True, help="Use a private agent, started for this capture.")
@trust_option
@with_settings
def command(
    settings: Settings, request_id: str, sources: tuple[str, ...], deadline: float, embedded: bool, trust_owner: bool
) -> None:
    """Say which hop has the request REQUEST_ID, since when, and the last byte each way.

    Looks into a snapshot FILE, else captures HOST (default: this machine) and keeps no file. Several hosts are captured
    at one instant, and the request is followed from one to the other.
    """
    if embedded and sources:
        raise click.UsageError("--embedded captures this machine: leave HOST out")
    from freezeframe.client import agents, files, fleets, node_sets  # noqa: PLC0415 - protobuf costs start-up time
    from freezeframe.client.cli import many  # noqa: PLC0415
    from freezeframe.client.cli.result import DAMAGED  # noqa: PLC0415
    from freezeframe.client.render import markdown, text, whereabouts  # noqa: PLC0415
    from freezeframe.judge import SCHEMA  # noqa: PLC0415
    from freezeframe.v1 import service_pb2  # noqa: PLC0415

    request = service_pb2.CaptureRequest(window_ms=0.0, deadline_ms=deadline * 1000.0, schema=SCHEMA)
    with contextlib.ExitStack() as stack:
        if len(sources) == 1 and (os.path.isfile(sources[0]) or sources[0].endswith(".ffz")):
            opened = files.load(sources[0])
            fleet = fleets.judge(opened)
        elif len(named := node_sets.expand(sources, (), {})) > 1:
            look = many.look(settings, named, request, deadline, trust_owner=trust_owner)
            opened, fleet = stack.enter_context(look)
        else:
            host = named[0] if named else None
            with agents.for_capture(settings, host, embedded=embedded, trust_owner=trust_owner) as reached:
                received = reached.agent.capture(request, deadline).receive()
            opened, fleet = files.parse(received.data, received.done.snapshot_id), None
        alone = (whereabouts.find(each, request_id) for each in opened.each(whereabouts.READ))
        whole = None
        if fleet is not None:
            whole = whereabouts.find(fleets.joined(fleet, whereabouts.READ), request_id, fleet.names)
        if settings.output == "json":
            emit(whereabouts.to_json(request_id, alone, whole), utf8=True)
        else:
            pages = whereabouts.page(request_id, alone if whole is None else [whole])
            if settings.output == "markdown":
                emit((markdown.render(pages),), utf8=True)
            else:
                emit((text.render(pages[:1] if settings.output == "brief" else pages, settings.style()),))
    for missing in opened.manifest.missing:
        complain(f"{missing.host} brought nothing: {missing.error}")
    for sentence in opened.lost:
        complain(sentence)
    if opened.lost:
        click.get_current_context().exit(DAMAGED)
