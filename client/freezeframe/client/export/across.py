"""The way of requests from host to host, as the judge joins it: pairs of slices that a flow leads over. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from freezeframe.judge.correlate.joined import number_of, own_pid
from freezeframe.judge.fleet import Fleet
from freezeframe.judge.model import Request

# A request of one host: position of the host, pid, descriptor, whether the process serves it.
End = tuple[int, int, int, bool]

_REFERENCE = re.compile(r"requests\[(\d{1,9})\]", re.ASCII)


def ways(fleet: Fleet) -> Iterator[tuple[End, End]]:
    """Give the way of every request that is served on another host: from who asks there, who has it from its caller.

    Where who asks has no record of the connection, from the request that it passes on there. A connection with several
    requests at a time tells of none of them.
    """
    known = Counter(end for part in fleet.words.joined.parts for each in part.requests if (end := _end(each)))
    peers = {
        (each.pid, each.fd): (each.peer_pid, each.peer_fd)
        for each in fleet.snapshot.sockets
        if each.pid and each.fd is not None and each.peer_pid and each.peer_fd is not None
    }
    requests = fleet.snapshot.requests
    passed_by = {further: each for each in requests for further in references(each.upstream, len(requests))}
    for index, request in enumerate(requests):
        served = _end(request)
        if served is None or not served[3] or known[served] != 1:
            continue
        before = _end(passed_by[index]) if index in passed_by else None
        asked = _asking(peers.get((request.pid or 0, request.fd or 0)))
        if asked is not None and known[asked] == 1:
            if asked[0] == served[0]:
                continue
            yield asked, served
            if before is not None and known[before] == 1:
                yield before, asked
        elif before is not None and known[before] == 1 and before[0] != served[0]:
            yield before, served


def references(upstream: Iterable[str], count: int) -> Iterator[int]:
    """Give the positions of the same request one hop further, among `count`."""
    for reference in upstream:
        found = _REFERENCE.fullmatch(reference)
        if found and int(found[1]) < count:
            yield int(found[1])


def _end(request: Request) -> End | None:
    if request.pid is None or request.fd is None:
        return None
    return number_of(request.pid) - 1, own_pid(request.pid), request.fd, request.side is Request.Side.SERVER


def _asking(peer: tuple[int, int] | None) -> End | None:
    if peer is None:
        return None
    pid, descriptor = peer
    return number_of(pid) - 1, own_pid(pid), descriptor, False
