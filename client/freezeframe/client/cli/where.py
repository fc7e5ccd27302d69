"""`freezeframe where`: which hop has one request."""

from __future__ import annotations

import os

import click

from freezeframe.client.cli.common import Seconds, trust_option, with_settings
from freezeframe.client.settings import Settings, complain, emit

_DEADLINE_S = 5.0


@click.command("where")
@click.argument("request_id")
@click.argument("source", required=False, metavar="[HOST|FILE]")
@click.option("--deadline", type=Seconds(0.1), default=_DEADLINE_S, metavar="S", help="Time for a capture.")
@click.option("--embedded", is_flag=True, help="Use a private agent, started for this capture.")
@trust_option
@with_settings
def command(
    settings: Settings, request_id: str, source: str | None, deadline: float, embedded: bool, trust_owner: bool
) -> None:
    """Say which hop has the request REQUEST_ID, since when, and the last byte each way.

    Looks into a snapshot FILE, else captures HOST (default: this machine) and keeps no file.
    """
    from freezeframe.client import agents, files  # noqa: PLC0415 - grpc and protobuf cost start-up time
    from freezeframe.client.cli.result import DAMAGED  # noqa: PLC0415
    from freezeframe.client.render import markdown, text, whereabouts  # noqa: PLC0415
    from freezeframe.judge import SCHEMA  # noqa: PLC0415
    from freezeframe.v1 import service_pb2  # noqa: PLC0415

    if source is not None and (os.path.isfile(source) or source.endswith(".ffz")):
        opened = files.load(source)
    else:
        request = service_pb2.CaptureRequest(window_ms=0.0, deadline_ms=deadline * 1000.0, schema=SCHEMA)
        with agents.for_capture(settings, source, embedded=embedded, trust_owner=trust_owner) as reached:
            received = reached.agent.capture(request, deadline).receive()
        opened = files.parse(received.data, received.done.snapshot_id)
    found = [whereabouts.find(snapshot, request_id) for snapshot in opened.snapshots]
    if settings.output == "json":
        emit(whereabouts.to_json(request_id, found), utf8=True)
    elif settings.output == "markdown":
        emit((markdown.render(whereabouts.page(request_id, found)),), utf8=True)
    else:
        pages = whereabouts.page(request_id, found)
        emit((text.render(pages[:1] if settings.output == "brief" else pages, settings.style()),))
    for sentence in opened.lost:
        complain(sentence)
    if opened.lost:
        click.get_current_context().exit(DAMAGED)
