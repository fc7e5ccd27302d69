"""Asking the recorder, in a worker: one question, one answer in a memory file of its own, never longer than told.

A question is one JSON object: {"what": "requests"}. The answer is one JSON object with a descriptor of a memory file
that holds the records, as JSON, too; or, without a descriptor, {"error": ..., "hint": ...}.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from typing import Any

_ANSWER_BYTES = 16 * 1024
# Some 50,000 requests.
_RECORDS_BYTES = 64 * 1024 * 1024


class RecorderError(Exception):
    """There is no answer; `hint` says what to do."""

    def __init__(self, detail: str, hint: str = "") -> None:
        """Keep the sentence and the next step."""
        super().__init__(detail)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the recorder says of itself, and its records."""

    state: dict[str, Any]
    records: Any


def ask(descriptor: int | None, what: str, *, timeout_s: float) -> Answer:
    """Ask on a worker's socket. Raises RecorderError."""
    if descriptor is None:
        raise RecorderError("the recorder is not running", "it is restarted by itself within 2 s: capture again")
    with socket.socket(fileno=os.dup(descriptor)) as channel:
        channel.settimeout(max(0.01, timeout_s))
        try:
            channel.send(json.dumps({"what": what}).encode())
            data, descriptors, _, _ = socket.recv_fds(channel, _ANSWER_BYTES, 1)
        except TimeoutError as error:
            raise RecorderError(
                f"asking the recorder: no answer within {timeout_s:.1f} s",
                "one that was started just now compiles its programs: capture again in some seconds",
            ) from error
        except OSError as error:
            raise RecorderError("the recorder ended", "it is restarted by itself within 2 s: capture again") from error
    if not data:
        raise RecorderError("the recorder ended", "it is restarted by itself within 2 s: capture again")
    state: dict[str, Any] = json.loads(data)
    if "error" in state or not descriptors:
        raise RecorderError(str(state.get("error", "")), str(state.get("hint", "")))
    try:
        size = min(os.fstat(descriptors[0]).st_size, _RECORDS_BYTES)
        records = json.loads(os.pread(descriptors[0], size, 0))
    finally:
        os.close(descriptors[0])
    return Answer(state=state, records=records)
