"""The last good sample of each GPU: what is shown, with its age, of one that no longer answers. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from freezeframe.judge.model import Gpu


class LastGpus:
    """By index."""

    def __init__(self) -> None:
        """Start with none."""
        self._good: dict[int, tuple[float, Gpu]] = {}

    def complete(self, gpus: Iterable[Gpu], now: float, *, asked: bool) -> tuple[Gpu, ...]:
        """What came of a capture at `now` (monotonic seconds), with what was known before of those that said nothing.

        `asked` is whether they should all have been there.
        """
        came = {gpu.index: gpu for gpu in gpus}
        for index, gpu in came.items():
            if gpu.name and not gpu.error:
                self._good[index] = now, gpu
            elif index in self._good and not gpu.name:
                came[index] = self._old(index, now, gpu.error)
        if asked:
            for index in self._good.keys() - came.keys():
                came[index] = self._old(index, now, "no answer in this capture")
        return tuple(came[index] for index in sorted(came))

    def _old(self, index: int, now: float, error: str) -> Gpu:
        at, gpu = self._good[index]
        return replace(gpu, error=error, age_ms=(now - at) * 1000.0)
