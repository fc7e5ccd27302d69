"""A bed whose programs each live in a network namespace of their own, as in containers or pods of one host."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from freezeframe.agentd.host import netns
from tests.bed.bed import Bed
from tests.support.network import Place, network

_LOCAL = "127.0.0.1"


class SpreadBed(Bed):
    """As `Bed`, over a bridge instead of loopback; needs root."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        with contextlib.ExitStack() as stack:
            net = stack.enter_context(network("router", "harness", "stray", *self.engines))
            self._network = stack.pop_all()
        self.places: dict[str, Place] = net.places
        for name, engine in self.engines.items():
            engine.url = engine.url.replace(_LOCAL, net.places[name].address)

    def stop(self) -> None:
        super().stop()
        self._network.close()

    @property
    def url(self) -> str:
        return super().url.replace(_LOCAL, self.places["router"].address)

    def _spawn(self, name: str, command: list[str], memory_mib: int, **env: str) -> None:
        place = self.places[name]
        # Where it listens; whom it calls is in its flags already.
        command = [argument.replace(_LOCAL, place.address) for argument in command]
        super()._spawn(name, place.command(*command), memory_mib, **env)

    def _get(self, url: str) -> bytes | None:  # type: ignore[override]
        found: list[bytes | None] = []

        def ask() -> None:
            with netns.inside(self.places["router"].path):
                found.append(super(SpreadBed, self)._get(url))

        # A thread may be elsewhere without taking its process along.
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return found[0]
