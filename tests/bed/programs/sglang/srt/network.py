"""zmq sockets as SGLang configures them: no high-water mark, so a backlog sits in user memory, not in kernel queues."""

from __future__ import annotations

from typing import Any

import zmq


def get_zmq_socket(context: Any, socket_type: int, endpoint: str, *, bind: bool) -> Any:
    socket = context.socket(socket_type)
    socket.setsockopt(zmq.LINGER, 0)
    if socket_type in (zmq.PUSH, zmq.DEALER, zmq.ROUTER):
        socket.setsockopt(zmq.SNDHWM, 0)
    if socket_type in (zmq.PULL, zmq.DEALER, zmq.ROUTER):
        socket.setsockopt(zmq.RCVHWM, 0)
    if bind:
        socket.bind(endpoint)
    else:
        socket.connect(endpoint)
    return socket
