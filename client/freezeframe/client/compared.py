"""Two snapshot files, opened and compared host by host."""

from __future__ import annotations

from dataclasses import dataclass

from freezeframe.client import compare, files, fleets
from freezeframe.v1 import snapshot_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a comparison of two files gives."""

    # What the hosts say together, the older one first, where both files are of several hosts; else empty.
    together: tuple[snapshot_pb2.Snapshot, ...]
    # One per host that is in both.
    comparisons: tuple[compare.Comparison, ...]
    # What has to be told beside: hosts in one file alone, what is lost, a newer writer; one sentence each.
    sentences: tuple[str, ...]
    # True when a file is damaged.
    damaged: bool


def load(first: str, second: str) -> Compared:
    """Open and compare two files. Raises FileError, NotComparableError."""
    return of((first, files.load(first)), (second, files.load(second)))


def of(first: tuple[str, files.Opened], second: tuple[str, files.Opened]) -> Compared:
    """Compare two opened files, each with its name. Raises NotComparableError."""
    opened = [first[1], second[1]]
    given = [
        [
            compare.Given(snapshot=snapshot, file=path, lost=lost)
            for snapshot, lost in zip(each.snapshots, each.lost_sections, strict=True)
        ]
        for path, each in (first, second)
    ]
    pairs = compare.pairs(*given)
    both = {older.snapshot.meta.host for older, _ in pairs}
    alone = [
        f"{each.snapshot.meta.host or 'an unnamed host'} is in {each.file} alone"
        for hosts in given
        for each in hosts
        if each.snapshot.meta.host not in both
    ]
    told = [sentence for each in opened for sentence in (*each.lost, *((each.newer,) if each.newer else ()))]
    whole = [page for each in opened if (page := fleets.together(each)) is not None]
    return Compared(
        together=tuple(sorted(whole, key=lambda page: page.meta.started_at)) if len(whole) == len(opened) else (),
        comparisons=tuple(compare.compare(*pair) for pair in pairs),
        sentences=(*alone, *told),
        damaged=any(each.lost for each in opened),
    )
