"""A regular bed whose engines have several tokenizer workers, and schedulers behind a data parallel controller.

with WideBed.start(regular=True) as bed: ...; bed.pids.engines["engine0"].workers
"""

from __future__ import annotations

from tests.bed.bed import Bed


class WideBed(Bed):
    """As `Bed`; a fault of an HTTP process is set in one worker with ``engine.http(..., worker=N)``."""

    engine_flags = ("--tokenizer-worker-num", "2", "--dp-size", "2")
