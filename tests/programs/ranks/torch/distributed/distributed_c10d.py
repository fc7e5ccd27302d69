"""Collectives that wait as gloo's do: each rank tells every other one which operation it is in, and sleeps until all
are in the same one. What a rank is told of another operation is kept for later, so ranks that differ wait for ever."""

from __future__ import annotations

import select
import socket
from collections import Counter


class AbortedError(Exception):
    """The wait was ended from outside."""


class ProcessGroup:
    def __init__(self, rank: int, peers: dict[int, socket.socket], released: socket.socket) -> None:
        self.rank, self.peers, self.released = rank, peers, released
        self.told: dict[int, Counter[bytes]] = {peer: Counter() for peer in peers}
        self.poller = select.poll()
        for each in (*peers.values(), released):
            self.poller.register(each, select.POLLIN)

    def forget(self) -> None:
        """Begin anew, as all ranks do together."""
        for peer, each in self.peers.items():
            self.told[peer].clear()
            each.setblocking(False)
            try:
                while each.recv(4096):
                    pass
            except BlockingIOError:
                pass
            each.setblocking(True)


def all_reduce(group: ProcessGroup) -> None:
    for each in group.peers.values():
        each.send(b"r")
    while not all(group.told[peer][b"r"] for peer in group.peers):
        take(group, group.poller.poll())
    for peer in group.peers:
        group.told[peer][b"r"] -= 1


def broadcast(group: ProcessGroup, src: int = 0) -> None:
    if group.rank == src:
        for each in group.peers.values():
            each.send(b"b")
        # The answers, so that the next one does not run ahead.
        waits_for = list(group.peers)
    else:
        group.peers[src].send(b"b")
        waits_for = [src]
    while not all(group.told[peer][b"b"] for peer in waits_for):
        take(group, group.poller.poll())
    for peer in waits_for:
        group.told[peer][b"b"] -= 1


def take(group: ProcessGroup, ready: list[tuple[int, int]]) -> None:
    for descriptor, _ in ready:
        if descriptor == group.released.fileno():
            raise AbortedError
        peer, each = next((peer, each) for peer, each in group.peers.items() if each.fileno() == descriptor)
        for letter in each.recv(4096):
            group.told[peer][bytes([letter])] += 1
