"""The request ledger's user side: clears the heads, prunes what has ended, makes room, and tells what is in flight.

What was read of a message stays for less than a second: `sweep` marks the heads that are full or waited long enough,
and a millisecond later, when no program can still write to them, parses them in the map itself, which is mapped,
zeroes their bytes there and frees them. Of a connection it keeps what `heads` lets through; nothing else is copied.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field

from freezeframe.agentd.bpf import layout
from freezeframe.agentd.bpf.layout import Connection, Stream, Watch
from freezeframe.agentd.bpf.loader import Loaded
from freezeframe.agentd.bpf.maps import NO_EXIST
from freezeframe.agentd.host import descriptors
from freezeframe.agentd.recorder import exchange, heads
from freezeframe.agentd.recorder.exchange import Flight, Known
from freezeframe.agentd.recorder.sampler import Counted

_HEAD_SLOT = (layout.HEAD_SIZE + 7) // 8 * 8
_ZEROS = bytes(layout.HEAD_BYTES + layout.HEAD_PIECE)
# No program runs longer than this between looking at a head's state and writing to it.
_SETTLE_S = 0.001
# A head without its blank line waits for the rest so many sweeps.
_PATIENT_SWEEPS = 2
# Room is made when more than this share of the connections is in use.
_FULL_SHARE = 0.75
# Room that is made beyond that, entries.
_ROOM = 1024
# Everything is looked through so often, prunings.
_PRUNE_ALL = 30
_NOTHING = Known()
_U64 = struct.Struct("=Q")
_BLANK = Connection._make(layout.CONNECTION.unpack(bytes(layout.CONNECTION.size)))._replace(
    direction=layout.NOWHERE, request_head=layout.NO_HEAD, response_head=layout.NO_HEAD, references=1
)


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """Sweeps that a head without its blank line has waited, by its index."""

    sweeps: dict[int, int] = field(default_factory=dict)


def _seen_late(pid: int, fd: int, generation: int) -> bytes:
    return layout.CONNECTION.pack(
        *_BLANK._replace(opened_ns=generation, generation=generation, tgid=pid, fd=fd, flags=layout.SEEN_LATE)
    )


class Ledger:
    """One loaded ledger. Not for several threads."""

    def __init__(self, loaded: Loaded, *, proc: str = "/proc", now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Take over the maps and have every head free."""
        maps = loaded.maps
        self._loaded = loaded
        self._watched = maps["watched"]
        self._descriptors = maps["descriptors"]
        self._connections = maps["connections"]
        self._streams = maps["streams"]
        self._counters = maps["counters"]
        self._free = maps["free_heads"]
        self._heads = maps["heads"].memory()
        self._states = maps["head_states"].memory()
        self._control = maps["control"].memory()
        self._proc = proc
        self._now_ns = now_ns
        self._known: dict[int, Known] = {}
        self._waiting = _Waiting()
        self._sweep = 0
        self._pruned = 0
        self._seeded = 0
        # By connection: its entry and heads at the last count, and the count.
        self._last_counted: dict[int, tuple[Connection, Known, int]] = {}
        self.armed_ns = now_ns()
        # Connections that were taken out to make room.
        self.evicted = 0
        for index in range(layout.HEADS):
            self._free.push(layout.PID.pack(index))

    # -- what is told --

    def connections(self) -> dict[int, Connection]:
        """All entries, less those of programs that have ended."""
        generations = {pid: watch.generation for pid, watch in self.watched().items()}
        return {number: each for number, each in self._all() if generations.get(each.tgid) == each.generation}

    def _all(self) -> Iterator[tuple[int, Connection]]:
        size = layout.CONNECTION.size
        for keys, values, count in self._connections.batches():
            ids = struct.unpack(f"={count}Q", keys)
            for number, fields in zip(ids, layout.CONNECTION.iter_unpack(values[: count * size]), strict=True):
                yield number, Connection._make(fields)

    def watched(self) -> dict[int, Watch]:
        """All watched processes."""
        return {
            layout.PID.unpack(key)[0]: Watch._make(layout.WATCH.unpack(value)) for key, value in self._watched.items()
        }

    def in_flight(self, pids: Iterable[int] | None = None) -> list[Flight]:
        """Requests in flight of these processes, or of all."""
        self.sweep()
        chosen = None if pids is None else frozenset(pids)
        streams: dict[int, list[Stream]] = {}
        for stream in self._open_streams():
            streams.setdefault(stream.connection, []).append(stream)
        found: list[Flight] = []
        for number, connection in self.connections().items():
            if chosen is None or connection.tgid in chosen:
                known = self._known.get(number, _NOTHING)
                found += exchange.flights(connection, known, streams.get(number, ()))
        return found

    def resting(self) -> list[tuple[int, int]]:
        """Process and descriptor of every connection on which certainly nothing is in flight."""
        return [
            (connection.tgid, connection.fd)
            for number, connection in self.connections().items()
            if exchange.rests(connection, self._known.get(number, _NOTHING))
        ]

    def counted(self) -> Iterator[Counted]:
        """All connections with how many requests are in flight on each; cheap for those that nothing happened on."""
        streams: dict[int, list[Stream]] = {}
        for stream in self._open_streams():
            streams.setdefault(stream.connection, []).append(stream)
        before, self._last_counted = self._last_counted, {}
        for number, connection in self.connections().items():
            known = self._known.get(number, _NOTHING)
            last = before.get(number)
            if last is not None and last[0] == connection and last[1] is known and number not in streams:
                count = last[2]
            else:
                count = len(exchange.flights(connection, known, streams.get(number, ())))
            self._last_counted[number] = connection, known, count
            yield Counted(number, connection, count)

    def counters(self) -> dict[str, int]:
        """Count what was seen and what was lost since the start, by the names of `layout.COUNTERS`."""
        found = {}
        for index, name in enumerate(layout.COUNTERS):
            value = self._counters.get(layout.PID.pack(index)) or b""
            found[name] = sum(each[0] for each in _U64.iter_unpack(value))
        return found

    def locked_bytes(self) -> int:
        """Kernel memory of the maps."""
        return self._loaded.locked_bytes()

    # -- what is kept up --

    def watch(self, pid: int, inodes: Container[int]) -> None:
        """Watch a process that has these sockets already: what they carry from now on is counted, as seen late."""
        key = layout.PID.pack(pid)
        if self._watched.get(key) is not None:
            return
        try:
            sockets = descriptors.sockets_of(f"{self._proc}/{pid}")
        except OSError:
            return  # ended, or not ours to see
        chosen = [fd for inode, fd in sockets.items() if inode in inodes]
        if not chosen:
            return
        generation = self._now_ns()
        entered = []
        for fd in chosen[: layout.MAX_CONNECTIONS_PER_PROCESS]:
            self._seeded += 1
            # Below every number that the programs give, which begin with the time.
            number = layout.ID.pack(self._seeded)
            self._connections.put(number, _seen_late(pid, fd, generation))
            entered.append((layout.DESCRIPTOR.pack(pid, fd), number))
            self._descriptors.put(entered[-1][0], number + _U64.pack(generation) + bytes(8))
        if not self._watched.put(key, layout.WATCH.pack(generation, 0, 0, 0, 0, len(entered), 0, 0, 0), NO_EXIST):
            # It opened a connection just now, and is watched from there on.
            for descriptor, number in entered:
                if (self._descriptors.get(descriptor) or b"").startswith(number):
                    self._descriptors.drop(descriptor)
                self._connections.drop(number)

    def sweep(self) -> None:
        """Parse and clear heads, forget what has ended."""
        self._sweep += 1
        self._control[: layout.CONTROL.size] = layout.CONTROL.pack(self._sweep)
        self._take_heads()

    def prune(self) -> None:
        """Delete the entries of processes that have ended, make room when there is little; cheap with neither."""
        watched = self.watched()
        gone = {pid for pid, watch in watched.items() if watch.exited or not os.path.exists(f"{self._proc}/{pid}")}
        ranges = {pid for pid, watch in watched.items() if watch.flags & layout.CLOSED_RANGE} - gone
        self._pruned += 1
        full = sum(max(0, watch.connections) for watch in watched.values()) > layout.MAX_CONNECTIONS * _FULL_SHARE
        if not gone and not ranges and not full and self._pruned % _PRUNE_ALL:
            return
        idle: list[tuple[int, int, Connection]] = []
        entries = 0
        removed: dict[int, int] = {}
        for number, connection in self._all():
            watch = watched.get(connection.tgid)
            if watch is None or connection.tgid in gone or watch.generation != connection.generation:
                self._delete(number, connection)
            elif connection.tgid in ranges and not self._is_open(connection):
                self._delete(number, connection)
                removed[connection.tgid] = removed.get(connection.tgid, 0) + 1
            elif exchange.flights(connection, self._known.get(number, _NOTHING), ()):
                entries += 1
                if not self._is_open(connection):
                    # Closed in a way that no system call tells, such as by io_uring.
                    self._delete(number, connection)
                    removed[connection.tgid] = removed.get(connection.tgid, 0) + 1
            else:
                entries += 1
                idle.append((max(connection.in_ns, connection.out_ns, connection.opened_ns), number, connection))
        self._make_room(entries, idle, removed)
        for pid in gone:
            self._watched.drop(layout.PID.pack(pid))
        for pid in {*ranges, *removed}:
            self._correct(pid, removed.get(pid, 0))
        self._forget_streams()

    def _make_room(self, entries: int, idle: list[tuple[int, int, Connection]], removed: dict[int, int]) -> None:
        """Take out connections that owe nothing, the longest idle first: they come back with their next head."""
        room = int(layout.MAX_CONNECTIONS * _FULL_SHARE)
        if entries <= room:
            return
        idle.sort(key=lambda each: each[0])
        for _, number, connection in idle[: entries - room + _ROOM]:
            if connection.protocol != layout.HTTP2 and connection.references == 1:
                self._delete(number, connection)
                self.evicted += 1
                removed[connection.tgid] = removed.get(connection.tgid, 0) + 1

    def _correct(self, pid: int, removed: int) -> None:
        """Take what we deleted off the count that the programs keep, and what we have looked into off the flags."""
        key = layout.PID.pack(pid)
        value = self._watched.get(key)
        if value is not None:
            watch = Watch._make(layout.WATCH.unpack(value))
            left = max(0, watch.connections - removed)
            self._watched.put(
                key, layout.WATCH.pack(*watch._replace(connections=left, flags=watch.flags & ~layout.CLOSED_RANGE))
            )

    def _is_open(self, connection: Connection) -> bool:
        try:
            return os.readlink(f"{self._proc}/{connection.tgid}/fd/{connection.fd}").startswith("socket:")
        except PermissionError:
            return True
        except OSError:
            return False

    def totals(self) -> dict[str, int]:
        """Count what is kept now, and what there is room for."""
        watched = self.watched()
        return {
            "processes": len(watched),
            "connections": sum(max(0, watch.connections) for watch in watched.values()),
            "max_connections": layout.MAX_CONNECTIONS,
        }

    def close(self) -> None:
        """Detach everything and let go of the memory."""
        for memory in (self._heads, self._states, self._control):
            memory.close()
        self._loaded.close()

    def _delete(self, number: int, connection: Connection) -> None:
        key = layout.DESCRIPTOR.pack(connection.tgid, connection.fd)
        reference = self._descriptors.get(key)
        if reference is not None and layout.REFERENCE.unpack(reference)[0] == number:
            self._descriptors.drop(key)
        self._connections.drop(layout.ID.pack(number))
        self._known.pop(number, None)

    def _open_streams(self) -> list[Stream]:
        return [
            Stream(*layout.STREAM.unpack(key), *layout.STREAM_STATE.unpack(value))
            for key, value in self._streams.items()
        ]

    def _forget_streams(self) -> None:
        for stream in self._open_streams():
            if self._connections.get(layout.ID.pack(stream.connection)) is None:
                self._streams.drop(layout.STREAM.pack(stream.connection, stream.number))
        for number in [each for each in self._known if self._connections.get(layout.ID.pack(each)) is None]:
            del self._known[number]

    def _filling(self) -> list[int]:
        found, at = [], self._states.find(b"\x01", 0, layout.HEADS)
        while at >= 0:
            found.append(at)
            at = self._states.find(b"\x01", at + 1, layout.HEADS)
        return found

    def _take_heads(self) -> None:
        filling = self._filling()
        if not filling:
            return
        taken = [index for index in filling if self._is_due(index)]
        for index in taken:
            self._states[index] = layout.TAKEN
        time.sleep(_SETTLE_S)
        for index in taken:
            self._take(index)

    def _is_due(self, index: int) -> bool:
        """Whether a head is whole, full, or has waited long enough for its rest."""
        at = index * _HEAD_SLOT
        length = min(layout.HEAD.unpack_from(self._heads, at)[2], layout.HEAD_BYTES)
        begin = at + layout.HEAD.size
        whole = self._heads.find(b"\r\n\r\n", begin, begin + length) >= 0
        if whole or length >= layout.HEAD_BYTES:
            return True
        waited = self._waiting.sweeps.get(index, 0) + 1
        self._waiting.sweeps[index] = waited
        return waited > _PATIENT_SWEEPS

    def _take(self, index: int) -> None:
        at = index * _HEAD_SLOT
        number, sequence, length, kind = layout.HEAD.unpack_from(self._heads, at)
        begin = at + layout.HEAD.size
        end = begin + min(length, layout.HEAD_BYTES)
        known = self._known.get(number, _NOTHING)
        # In place: what is not kept is never copied.
        if kind == layout.REQUEST_HEAD:
            known = Known(
                request=heads.request_head(self._heads, begin, end),
                request_number=sequence,
                more_requests=max(0, heads.request_heads_in(self._heads, begin, end) - 1),
                response=known.response,
                response_number=known.response_number,
            )
        else:
            known = Known(
                request=known.request,
                request_number=known.request_number,
                more_requests=known.more_requests,
                response=heads.response_head(self._heads, begin, end),
                response_number=sequence,
            )
        self._heads[at : begin + len(_ZEROS)] = bytes(layout.HEAD.size) + _ZEROS
        self._states[index] = layout.FREE
        self._waiting.sweeps.pop(index, None)
        self._free.push(layout.PID.pack(index))
        self._known[number] = known
