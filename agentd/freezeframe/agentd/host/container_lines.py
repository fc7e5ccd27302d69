r"""Lines that a container runtime collected: Docker's json-file and the CRI's form, as their writer wrote them. Pure.

    {"log":"line\n","stream":"stderr","time":"2026-11-30T01:39:00.123456789Z"}
    2026-11-30T01:39:00.123456789+01:00 stderr F line

Both cut a long line into pieces, which are put together again; what is no such line is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from freezeframe.agentd.host.log_tail import LINE_BYTES, plain

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
_CRI_FIELDS = 4


class Line(NamedTuple):
    """One line."""

    # When the runtime got its end, seconds since the epoch.
    time: float
    text: bytes


class _Piece(NamedTuple):
    stream: str
    time: float
    text: bytes
    last: bool


def unwrap(kind: str, lines: Iterable[bytes]) -> list[Line]:
    """Unwrap the lines of a log of kind "docker" or "cri"; of a line only the first LINE_BYTES are kept."""
    parse = _docker if kind == "docker" else _cri
    found = []
    begun: dict[str, bytes] = {}
    for piece in filter(None, map(parse, lines)):
        text = begun.pop(piece.stream, b"") + piece.text
        if piece.last:
            found.append(Line(piece.time, plain(text[:LINE_BYTES])))
        else:
            begun[piece.stream] = text[:LINE_BYTES]
    return found


def _docker(line: bytes) -> _Piece | None:
    try:
        told = json.loads(line)
        text = told["log"].encode("utf-8", "surrogatepass")
        moment = _seconds(told["time"])
        stream = str(told.get("stream"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return None if moment is None else _Piece(stream, moment, text.rstrip(b"\n"), text.endswith(b"\n"))


def _cri(line: bytes) -> _Piece | None:
    fields = line.split(b" ", 3)
    if len(fields) < _CRI_FIELDS:
        return None
    moment = _seconds(fields[0].decode("ascii", "replace"))
    tags = fields[2].split(b":")
    return None if moment is None else _Piece(fields[1].decode("ascii", "replace"), moment, fields[3], b"P" not in tags)


def _seconds(text: str) -> float | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    try:
        # Up to Python 3.10 neither "Z" nor nanoseconds are understood.
        whole = datetime.fromisoformat(found[1] + ("+00:00" if found[3] == "Z" else found[3])).timestamp()
    except (ValueError, OverflowError):
        return None
    return whole + float(found[2] or 0.0)
