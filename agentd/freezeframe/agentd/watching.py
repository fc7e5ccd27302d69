"""The live view: the edges of the serving path now, from the recorder, once a second for whoever watches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from freezeframe.agentd.collectors.watch_edges import WATCH_EDGES
from freezeframe.agentd.engine import Runs
from freezeframe.agentd.errors import NotSupportedError
from freezeframe.agentd.host import Clock
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import Edge, Outcome, Process, Snapshot

Role = Process.Role

_DEADLINE_MS = 3000.0
# Who watches at the same time shares one look.
_SHARE_S = 0.4
# New processes are learned of at most so often.
_LEARN_S = 5.0
_SERVERS = frozenset({Role.PROXY, Role.ROUTER, Role.ENGINE_HTTP, Role.TOKENIZER_WORKER})


class Knows(Protocol):
    """What knows the processes of the host (`agentd.engine.Engine`)."""

    def known(self) -> Sequence[Process]:
        """Processes with the roles that their names give them."""

    async def warm(self) -> None:
        """Learn those that are new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """One look."""

    edges: tuple[Edge, ...]
    # Those at their ends.
    processes: tuple[Process, ...]


class Watching:
    """Looks when asked, at most every `_SHARE_S`."""

    def __init__(self, *, workers: Runs, processes: Knows, clock: Clock = Clock()) -> None:  # noqa: B008 - frozen
        """Ask through `workers`."""
        self._workers = workers
        self._processes = processes
        self._clock = clock
        self._turn = asyncio.Lock()
        self._last: Live | None = None
        self._looked_at = 0.0
        self._learned_at = 0.0

    async def look(self) -> Live:
        """Look now. Raises NotSupportedError where the recorder gives no answer."""
        async with self._turn:
            if self._last is None or self._clock.monotonic() - self._looked_at > _SHARE_S:
                self._last = await self._look()
                self._looked_at = self._clock.monotonic()
            return self._last

    async def ask(self) -> Outcome:
        """Ask the recorder whether it watches."""
        return await self._ask([])

    async def _ask(self, edges: list[Edge]) -> Outcome:
        add: Callable[[Snapshot], None] = lambda part: edges.extend(part.edges)  # noqa: E731
        job = Job(job_id=0, collector=WATCH_EDGES.name, deadline_ms=_DEADLINE_MS)
        return await self._workers.run(WATCH_EDGES, job, on_part=add, on_doing=lambda _what, _done: None)

    async def _look(self) -> Live:
        edges: list[Edge] = []
        outcome = await self._ask(edges)
        if outcome.status is not Outcome.Status.OK:
            raise NotSupportedError(f"watching: {outcome.detail}", outcome.hint or "take one capture: freezeframe snap")
        ends = {pid for edge in edges for pid in (edge.client_pid, edge.server_pid) if pid is not None}
        unknown = ends - {process.pid for process in self._processes.known()}
        if unknown and self._clock.monotonic() - self._learned_at > _LEARN_S:
            self._learned_at = self._clock.monotonic()
            await self._processes.warm()
        return on_path(edges, self._processes.known())


def on_path(edges: Iterable[Edge], processes: Iterable[Process]) -> Live:
    """Leave the edges whose server takes part in serving, and those from one that does; name who is at their ends."""
    known = {process.pid: process for process in processes}

    def serves(pid: int | None) -> bool:
        return pid is not None and pid in known and known[pid].role in _SERVERS

    kept = tuple(
        sorted(
            (
                edge
                for edge in edges
                if serves(edge.server_pid) or (edge.server_pid is None and serves(edge.client_pid))
            ),
            key=lambda edge: (-edge.owed, edge.client_pid or 0, edge.server_pid or 0, edge.client_address),
        )
    )
    ends: dict[int, Process] = {}
    for edge in kept:
        for pid in (edge.client_pid, edge.server_pid):
            if pid is not None:
                process = known.get(pid, Process(pid=pid))
                if process.role in {Role.OTHER, Role.UNSPECIFIED} and pid == edge.client_pid:
                    process = replace(process, role=Role.CLIENT)
                ends.setdefault(pid, process)
    return Live(edges=kept, processes=tuple(ends.values()))
