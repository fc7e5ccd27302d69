"""Admission. Its wedge: a budget that allows nothing, so that the queue is looked through again and again."""

from __future__ import annotations

import time
from typing import Any

# How long one look through the queue takes; the real one's length grows with queue and prefix tree.
LOOK_S = 0.02


class PrefillAdder:
    def __init__(self, waiting_queue: list[Any], rem_total_tokens: int) -> None:
        self.waiting_queue = waiting_queue
        self.rem_total_tokens = rem_total_tokens

    def add_one_req(self, tokens: int) -> bool:
        until = time.monotonic() + LOOK_S / max(1, len(self.waiting_queue))
        while time.monotonic() < until:
            pass
        return tokens <= self.rem_total_tokens
