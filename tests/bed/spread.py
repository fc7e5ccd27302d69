"""A bed whose programs each live in a network namespace of their own, as in containers or pods of one host.

with SpreadBed.start(wedge="router-dual-leg") as bed: ...
"""

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

    published = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        with contextlib.ExitStack() as stack:
            names = ("router", "harness", "stray", *self.engines)
            net = stack.enter_context(network(*names, bridged=not self.published))
            self.places: dict[str, Place] = net.places
            self.switch = net.switch
            self._address = self.places["router"].address
            if self.published:
                net.publish(self.router_port, self.places["router"], self.router_port)
                self._address = net.switch.address
            self._network = stack.pop_all()
        for name, engine in self.engines.items():
            engine.url = engine.url.replace(_LOCAL, net.places[name].address)

    def stop(self) -> None:
        super().stop()
        self._network.close()

    @property
    def url(self) -> str:
        return super().url.replace(_LOCAL, self._address)

    def _spawn(self, name: str, command: list[str], memory_mib: int, **env: str) -> None:
        place = self.places[name]
        # Where it listens; whom it calls is in its flags already.
        command = [argument.replace(_LOCAL, place.address) for argument in command]
        super()._spawn(name, self._inside(name, command), memory_mib, **env)

    def _inside(self, name: str, command: list[str]) -> list[str]:
        """Give the command line that runs this one where the program belongs."""
        return self.places[name].command(*command)

    def _get(self, url: str) -> bytes | None:  # type: ignore[override]
        found: list[bytes | None] = []

        def ask() -> None:
            with netns.inside(self.places["harness"].path):
                found.append(super(SpreadBed, self)._get(url))

        # A thread may be elsewhere without taking its process along.
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return found[0]


class PublishedBed(SpreadBed):
    """The router's clients reach it through a port that the host publishes."""

    published = True
