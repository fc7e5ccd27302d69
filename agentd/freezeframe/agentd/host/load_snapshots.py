"""SGLang's load snapshots: "/dev/shm/sglang_loads_*.shm", one slot for each data-parallel rank, written in passing.

The header names version, number of slots and their size. A slot is a length and a msgpack map, with the unix time at
which that rank's scheduler wrote it; while it is written its length is 0. Its writers hold a file lock, which nobody
who looks from outside may take: a slot that was torn is read again.

Pure but for `decode`, which loads the msgpack library. The content comes from a target and is hostile.
"""

from __future__ import annotations

import re
import struct
from typing import Any

NAME = re.compile(r"^/dev/shm/sglang_loads_[^/]*\.shm$")
_HEADER = struct.Struct("<4sHHI")
_LENGTH = struct.Struct("<I")
_MAGIC, _VERSION = b"SLNS", 2
# Sections are arrays: the names of their fields in order.
_SECTIONS = {
    "disaggregation": (
        *("mode", "prefill_bootstrap_queue_reqs", "prefill_inflight_queue_reqs", "decode_prealloc_queue_reqs"),
        *("decode_transfer_queue_reqs", "decode_retracted_queue_reqs", "kv_transfer_speed_gb_s"),
        "kv_transfer_latency_ms",
    ),
    "queues": ("waiting", "grammar", "paused", "retracted", "prealloc_ready"),
}
# What is 0 is not written; these are told all the same.
_DEFAULTS = dict.fromkeys(("dp_rank", "num_running_reqs", "num_waiting_reqs"), 0)


def slots(data: bytes) -> list[bytes]:
    """The payload of each slot, empty where one is being written. Raises ValueError for another format."""
    if len(data) < _HEADER.size:
        raise ValueError(f"reading a load snapshot of {len(data)} bytes: no header")
    magic, version, count, size = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or size <= _LENGTH.size:
        raise ValueError(f"reading a load snapshot: version {version} with slots of {size} bytes is not known")
    found = []
    for start in range(_HEADER.size, min(len(data), _HEADER.size + count * size), size):
        slot = data[start : start + size]
        length = _LENGTH.unpack_from(slot)[0] if len(slot) >= _LENGTH.size else 0
        found.append(slot[_LENGTH.size : _LENGTH.size + length] if length <= size - _LENGTH.size else b"")
    return found


def decode(payload: bytes) -> dict[str, Any]:
    """One rank's load as /v1/loads would tell it. Raises ValueError for a slot that is torn or empty."""
    import msgpack  # noqa: PLC0415 - only an engine that publishes its load needs it

    try:
        load = msgpack.unpackb(payload, raw=False, strict_map_key=True)
    # The library has errors of its own, and passes on those of the decoders that it uses.
    except Exception as error:
        raise ValueError(f"decoding {len(payload)} bytes of a load snapshot: {type(error).__name__}") from error
    if not isinstance(load, dict):
        raise ValueError("decoding a load snapshot: not a map")
    for section, names in _SECTIONS.items():
        values = load.get(section)
        if isinstance(values, list):
            load[section] = dict(zip(names, values, strict=False))
    return {**_DEFAULTS, **load}
