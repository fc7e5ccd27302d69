"""The first line: what became of the requests of clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from freezeframe.client.compare.model import RequestChange
from freezeframe.client.render import units


def headline(requests: Sequence[RequestChange], unseen: str, elapsed_ms: float) -> str:
    """Say it; `unseen` is why one of the snapshots shows no requests, empty when both looked."""
    mine = [each for each in requests if each.of_client]
    by_state = {state: [each for each in mine if each.state == state] for state in ("same", "gone", "new", "unclear")}
    apart = units.span(elapsed_ms)
    if not mine:
        if unseen:
            return f"requests were not seen in both: {unseen}"
        return f"no request of a client in either, {apart} apart"
    same = by_state["same"]
    parts = []
    if same:
        still, moving = still_ones(same), [each for each in same if each.bytes_moved]
        unknown = len(same) - len(still) - len(moving)
        if still and not unknown:
            parts.append(f"same {_requests(still)}, {apart} older, nothing moved")
            parts += [f"{len(moving)} more {_verb(moving, 'goes', 'go')} on, with bytes that moved"] if moving else []
        elif len(moving) == len(same):
            parts.append(f"same {_requests(same)}, {apart} older, bytes moved on {'it' if len(same) == 1 else 'each'}")
        else:
            parts.append(f"same {_requests(same)}, {apart} older, whether bytes moved is not known of {unknown}")
    parts += [_count(by_state[state], state, named=not same and number == 0) for number, state in _told(by_state)]
    return ("; " if same else ", ").join(parts) + ("" if same else f", {apart} apart")


def still_ones(requests: Iterable[RequestChange]) -> list[RequestChange]:
    """Those that are the same and on whose connections no byte moved."""
    return [each for each in requests if each.state == "same" and each.bytes_moved == 0]


def _told(by_state: dict[str, list[RequestChange]]) -> list[tuple[int, str]]:
    return list(enumerate(state for state in ("gone", "new", "unclear") if by_state[state]))


def _count(requests: Sequence[RequestChange], state: str, *, named: bool) -> str:
    count = _requests(requests) if named else str(len(requests))
    return f"{count} {'not seen in both' if state == 'unclear' else state}"


def _requests(requests: Sequence[RequestChange]) -> str:
    return units.count(len(requests), "request")


def _verb(requests: Sequence[RequestChange], one: str, several: str) -> str:
    return one if len(requests) == 1 else several
