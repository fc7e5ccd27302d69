"""Which files processes open, run, make, rename or remove, as the kernel sees it: nothing stops or slows for it."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from freezeframe.agentd.bpf import loader
from freezeframe.agentd.bpf.compiled import Attachment, ProgramFile
from freezeframe.agentd.bpf.maps import Map

_PROGRAM = ProgramFile(
    file=str(Path(__file__).parents[1] / "programs" / "names.bpf.c"),
    attachments=(Attachment(function="on_sys_exit", point="raw:sys_exit"),),
    needs_tracefs=True,
)
_NUMBER = struct.Struct("=I")
_USED = struct.Struct("=III228s")
_LOST = struct.Struct("=Q")
EXECVE, OPENAT, EXECVEAT = 59, 257, 322


@dataclass(frozen=True, kw_only=True)
class Used:
    """A name, of which kind of process, in which system call."""

    kind: int
    call: int
    # Whether the name counts from a directory that was opened before.
    below: bool
    name: str


@dataclass(frozen=True, kw_only=True)
class Names:
    """What was seen so far."""

    maps: dict[str, Map]

    def follow(self, pid: int, kind: int) -> None:
        """From now on what a process does is of this kind, and so is what those do that it starts."""
        self.maps["followed"].put(_NUMBER.pack(pid), _NUMBER.pack(kind))

    @contextlib.contextmanager
    def following_children_of(self, pid: int, kind: int) -> Iterator[None]:
        """Follow what a process starts within the block, and it itself for so long."""
        self.follow(pid, kind)
        try:
            yield
        finally:
            self.maps["followed"].drop(_NUMBER.pack(pid))

    def used(self) -> set[Used]:
        """All of it."""
        found = set()
        for key, _ in self.maps["names"].items():
            kind, call, below, name = _USED.unpack(key)
            text = name.partition(b"\0")[0].decode("utf-8", "backslashreplace")
            found.add(Used(kind=kind, call=call, below=bool(below), name=text))
        return found

    def lost(self) -> int:
        """How many found no room or could not be read."""
        value = self.maps["lost"].get(_NUMBER.pack(0))
        assert value is not None
        return int(_LOST.unpack(value)[0])


@contextlib.contextmanager
def traced(directory: Path) -> Iterator[Names]:
    """Trace for as long as the block runs; `directory` is ours, 0700."""
    loaded = loader.load(_PROGRAM, str(directory), timeout_s=600.0)
    try:
        yield Names(maps=dict(loaded.maps))
    finally:
        loaded.close()
