"""A file of four hosts that were captured together, and of one that brought nothing."""

from __future__ import annotations

from typing import cast

from freezeframe.judge import file, wire
from freezeframe.judge.fleet import conclude_fleet
from freezeframe.judge.model import Snapshot
from freezeframe.judge.verdicts import conclude
from freezeframe.v1 import file_pb2, verdict_pb2
from tests.replay.cases import CORPUS, read
from tests.support.cut import cut

CASE = "router-dual-leg-sglang-router-before"
GONE = file_pb2.Missing(host="gpu-09", error="connecting to gpu-09: no route to host", hint="look at its network")


def hosts(case: str = CASE) -> dict[str, Snapshot]:
    """Each host's snapshot, as its own agent judged it."""
    return {name: conclude(part) for name, part in cut(read(CORPUS / f"{case}.ffz")).items()}


def fleet_bytes(case: str = CASE, *missing: file_pb2.Missing) -> bytes:
    parts = list(hosts(case).values())
    files = [file.write([part], "tests") for part in parts]
    verdict = conclude_fleet(parts, {each.host: each.error for each in missing}).verdict
    head = file.fleet_head(
        [file.read_manifest(each).hosts[0] for each in files],
        "tests",
        cast("verdict_pb2.Verdict", wire.to_message(verdict)),
        missing,
    )
    return head + b"".join(each[file.manifest_end(each) :] for each in files)
