from __future__ import annotations

import time


class PrefillAdder:
    def __init__(self, waiting: int, budget: int) -> None:
        self.waiting, self.budget = waiting, budget

    def add_one_req(self, seconds: float) -> bool:
        """Look through the queue for so long; admit nothing where the budget allows nothing."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sum(range(2000))
        return self.budget > 0
