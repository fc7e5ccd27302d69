"""Files in which prometheus_client keeps the series of one process of several: "gauge_mostrecent_4711.db".

A file starts with how many bytes of it are used, an int, and four of padding. Then come the entries: length of the key,
an int; the key, a JSON list of family, name, labels and help text; padding to eight bytes, at least one; value and unix
time, two doubles. A writer puts an entry where it belongs and only then counts it as used; when it needs room the file
doubles. Only gauges whose most recent value counts carry a time; of the others it is 0.

Pure. The content comes from a target and is hostile: reading ends at the first entry that cannot be one.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from functools import lru_cache

NAME = re.compile(r"/(?P<kind>counter|gauge_[a-z]+|histogram|summary)_(?P<pid>\d+)\.db$")
HEADER_BYTES = 8
_ENTRY_BYTES = 4 + 16
_LENGTH = struct.Struct("<i")
_SAMPLE = struct.Struct("<dd")
_MOST_RECENT = ("gauge_mostrecent", "gauge_livemostrecent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One series."""

    name: str
    labels: dict[str, str]
    value: float
    # When it was written, unix time, seconds; None where the file does not tell.
    written_s: float | None


def used_bytes(header: bytes) -> int:
    """How much of a file its header says is in use; 0 where that makes no sense."""
    return max(0, _LENGTH.unpack_from(header)[0]) if len(header) >= _LENGTH.size else 0


def parse(data: bytes, kind: str) -> tuple[list[Entry], str]:
    """Entries of the used part of a file, and what is wrong with it; empty when nothing is.

    A gauge that would have a time and has none was never written: it says nothing and is left out.
    """
    timed = kind in _MOST_RECENT
    entries: list[Entry] = []
    used = min(used_bytes(data), len(data))
    position = HEADER_BYTES
    while position < used:
        if position + _ENTRY_BYTES > used:
            return entries, f"{used - position} bytes at its end are no entry"
        (length,) = _LENGTH.unpack_from(data, position)
        start = position + _LENGTH.size
        sample = start + length + 8 - (length + 4) % 8
        if length <= 0 or sample + _SAMPLE.size > used:
            return entries, f"the entry at {position} does not end in it"
        value, written = _SAMPLE.unpack_from(data, sample)
        key = _key(bytes(data[start : start + length]))
        if key is None:
            return entries, f"the key at {position} is none"
        position = sample + _SAMPLE.size
        if math.isfinite(value) and not (timed and not written > 0):
            entries.append(Entry(name=key[0], labels=key[1], value=value, written_s=written if timed else None))
    return entries, ""


# The same keys are read again every second.
@lru_cache(maxsize=8192)
def _key(text: bytes) -> tuple[str, dict[str, str]] | None:
    try:
        _, name, labels, _ = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    if not isinstance(name, str) or not isinstance(labels, dict):
        return None
    if not all(isinstance(value, str) for value in labels.values()):
        return None
    return name, labels
