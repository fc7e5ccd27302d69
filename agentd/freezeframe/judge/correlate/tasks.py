"""asyncio tasks joined to the requests that they serve, and where those stand.

A task is tied to a request by what its own chain holds: the descriptor of the connection, the id from the request's
header, or the address of the client. What it knows of the request (id, method, path) is told of the request where the
sockets or the recorder do not know it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from freezeframe.judge.model import AsyncioTask, Frame, Request

# Files of what waits, not of who waits.
_LIBRARIES = ("asyncio/", "anyio/", "uvloop/", "contextlib.py", "<frozen ")


def name_requests(requests: list[Request], tasks: Iterable[AsyncioTask]) -> None:
    """Give requests that nothing else names the id, method and path that the task serving them knows."""
    of = _Requests(requests)
    for task in tasks:
        index = of.served_by(task)
        if index is None or not task.path:
            continue
        known = requests[index]
        requests[index] = replace(
            known,
            request_id=known.request_id or task.request_id,
            method=known.method or task.method,
            path=known.path or task.path,
        )


def refer(tasks: Sequence[AsyncioTask], requests: Sequence[Request]) -> tuple[AsyncioTask, ...]:
    """Give the tasks with the request that each serves, as "requests[N]"."""
    of = _Requests(requests)
    found = []
    for task in tasks:
        index = of.served_by(task)
        found.append(replace(task, request_ref="" if index is None else f"requests[{index}]"))
    return tuple(found)


class _Requests:
    """Requests that a process serves, by what a task may know of them."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._by_fd: dict[tuple[int, int], list[int]] = {}
        self._by_id: dict[tuple[int, str], list[int]] = {}
        self._by_peer: dict[tuple[int, str], list[int]] = {}
        for index, request in enumerate(requests):
            if request.pid is None or request.side is not Request.Side.SERVER:
                continue
            if request.fd is not None:
                self._by_fd.setdefault((request.pid, request.fd), []).append(index)
            if request.request_id:
                self._by_id.setdefault((request.pid, request.request_id), []).append(index)
            if request.peer_address:
                self._by_peer.setdefault((request.pid, request.peer_address), []).append(index)

    def served_by(self, task: AsyncioTask) -> int | None:
        """Position of the request that a task serves; None when it is not one alone."""
        if task.doubt or task.state == "finished":
            return None
        by_fd = self._by_fd.get((task.pid, task.fd), []) if task.fd is not None else []
        by_id = self._by_id.get((task.pid, task.request_id), []) if task.request_id else []
        by_peer = self._by_peer.get((task.pid, task.peer_address), []) if task.peer_address else []
        if by_fd and by_id:
            # Several on one connection: that of the id.
            both = [index for index in by_fd if index in by_id]
            return both[0] if len(both) == 1 else None
        return next((found[0] for found in (by_fd, by_id, by_peer) if len(found) == 1), None)


def where(task: AsyncioTask) -> Frame | None:
    """The frame in which a task waits: the innermost one that is not of a library of waits."""
    return next(
        (frame for frame in reversed(task.frames) if not _of_library(frame)),
        task.frames[-1] if task.frames else None,
    )


def gathered(tasks: Iterable[AsyncioTask]) -> tuple[Frame, int] | None:
    """Where most of the tasks wait, and how many of them; None for no task."""
    places = Counter(frame for task in tasks if (frame := where(task)) is not None)
    return places.most_common(1)[0] if places else None


def innermost(tasks: Sequence[tuple[int, AsyncioTask]]) -> list[tuple[int, AsyncioTask]]:
    """Of tasks (position, task) that serve the same request those that wait for none of the others.

    A task that a library made for itself, as `asyncio.wait_for` does, tells less than the one that waits for it.
    """
    telling = [(index, task) for index, task in tasks if not all(map(_of_library, task.frames))] or tasks
    addresses = {(task.pid, task.address) for _, task in telling}
    return [
        (index, task)
        for index, task in telling
        if not any((task.pid, edge.address) in addresses for edge in task.waits_for)
    ]


def _of_library(frame: Frame) -> bool:
    return frame.file.startswith(_LIBRARIES)
