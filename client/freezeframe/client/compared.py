"""Two snapshot files, opened and compared host by host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from freezeframe.client import compare, files, fleets
from freezeframe.v1 import snapshot_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a comparison of two files gives."""

    opened: tuple[files.Opened, files.Opened]
    # Positions of each host that is in both.
    pairs: tuple[tuple[int, int], ...]

    def comparisons(self) -> Iterator[compare.Comparison]:
        """Compare one host after the other, each read when its turn comes."""
        for pair in self.pairs:
            yield compare.compare(*(_given(opened, at) for opened, at in zip(self.opened, pair, strict=True)))

    def together(self) -> tuple[snapshot_pb2.Snapshot, ...]:
        """What the hosts say together, the older one first, where both files are of several hosts; else empty."""
        whole = [page for each in self.opened if (page := fleets.together(each)) is not None]
        if len(whole) < len(self.opened):
            return ()
        return tuple(sorted(whole, key=lambda page: page.meta.started_at))

    @property
    def sentences(self) -> tuple[str, ...]:
        """What has to be told beside, once all was read: hosts in one file alone, what is lost, a newer writer."""
        told = [sentence for each in self.opened for sentence in (*each.lost, *((each.newer,) if each.newer else ()))]
        return (*self._alone(), *told)

    @property
    def damaged(self) -> bool:
        """Whether a file is, once all was read."""
        return any(each.lost for each in self.opened)

    def _alone(self) -> Iterator[str]:
        both = {self.opened[0].hosts[at].part.meta.host for at, _ in self.pairs}
        for opened in self.opened:
            for host in opened.hosts:
                if host.part.meta.host not in both:
                    yield f"{host.part.meta.host or 'an unnamed host'} is in {opened.name} alone"


def load(first: str, second: str, host: str | None = None) -> Compared:
    """Open two files, or what they have of one `host`. Raises FileError, UnknownHostError, NotComparableError."""
    return of(files.load(first, host), files.load(second, host))


def of(first: files.Opened, second: files.Opened) -> Compared:
    """Pair the hosts of two opened files. Raises NotComparableError."""
    opened = (first, second)
    names = tuple([host.part.meta.host for host in each.hosts] for each in opened)
    return Compared(opened=opened, pairs=compare.pairs((first.name, second.name), (names[0], names[1])))


def _given(opened: files.Opened, position: int) -> compare.Given:
    host = opened.hosts[position]
    snapshot = opened.read(host)
    return compare.Given(snapshot=snapshot, file=opened.name, lost=files.lost_sections(host, snapshot))
