"""The child's end of the supervisor's control channel, for children that run asyncio."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping

from freezeframe.agentd.channel import Channel, encode


class Control:
    """Introductions come in, readiness goes out; its end is the end of the child."""

    def __init__(self, control_fd: int) -> None:
        """Take over the descriptor named on the command line."""
        self._channel = Channel(socket.socket(fileno=control_fd))
        # Programs started from here have no part in it.
        os.set_inheritable(control_fd, False)

    def ready(self) -> None:
        """Tell the supervisor that this child serves."""
        self._channel.send(encode("ready"))

    async def follow(self, peers: Mapping[str, Callable[[socket.socket], None]]) -> None:
        """Give each socket that is introduced to the entry of its name; returns when the supervisor has gone."""
        loop = asyncio.get_running_loop()
        gone = loop.create_future()

        def receive() -> None:
            for message in self._channel.receive():
                take = peers.get(message.text("name")) if message.op == "peer" else None
                if take is None or len(message.descriptors) != 1:
                    message.close()
                else:
                    take(socket.socket(fileno=message.descriptors[0]))
            if self._channel.closed and not gone.done():
                gone.set_result(None)

        loop.add_reader(self._channel, receive)
        try:
            await gone
        finally:
            loop.remove_reader(self._channel)
