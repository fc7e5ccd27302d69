"""Compiles and loads the programs, and attaches them. What they need of a compiler is kept from one start to the next.

BCC takes 100 MB and a second, so it compiles in a process of its own (`compiler`), and what it made is written into a
directory of ours that nobody else may write (0700): as long as kernel, sources and constants are the same, the next
start loads it from there within a tenth of a second. A program is attached as long as somebody holds its descriptor;
nothing is pinned, so SIGKILL of the holder takes all of it away.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from freezeframe.agentd.bpf import compiled, compiler, syscalls
from freezeframe.agentd.bpf.compiled import Attachment, Compiled, MapShape, ProgramFile
from freezeframe.agentd.bpf.errors import BpfError
from freezeframe.agentd.bpf.maps import Map

# Names of files with compiled programs begin so.
KEPT = "programs-"
_CONTINUATIONS = "continuations"
_PER_CPU = frozenset({5, 6, 10})
_KINDS = {"typed": syscalls.TRACING, "raw": syscalls.RAW_TRACEPOINT, "tracepoint": syscalls.TRACEPOINT}
_INDEX = struct.Struct("=I")
_TIMEOUT_S = 60.0
_SAID_CHARACTERS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Programs that run as long as these descriptors are open."""

    maps: Mapping[str, Map]
    # Attachments.
    descriptors: tuple[int, ...]
    # Which of the alternatives runs: 0 = the first.
    rung: int
    # Why earlier ones do not.
    passed: tuple[str, ...]
    duration_ms: float

    def close(self) -> None:
        """Detach everything."""
        _close((*self.descriptors, *(each.fd for each in self.maps.values())))

    def locked_bytes(self) -> int:
        """Kernel memory of all maps."""
        return sum(each.locked_bytes() for each in self.maps.values())


def load(program: ProgramFile, directory: str, *, kernel_headers: str = "", timeout_s: float = _TIMEOUT_S) -> Loaded:
    """Load and attach, compiled before or now; `directory` is ours, 0700. Raises BpfError."""
    compiler.check_private(directory)
    started = time.monotonic()
    passed: list[str] = []
    hint = "freezeframe doctor"
    each: ProgramFile | None = program
    while each is not None:
        try:
            maps, descriptors = _load(_compiled(each, directory, kernel_headers, timeout_s))
        except BpfError as error:
            passed.append(error.detail)
            hint = error.hint or hint
        except OSError as error:
            passed.append(f"{each.file}: {error.strerror}")
        else:
            return Loaded(
                maps=maps,
                descriptors=descriptors,
                rung=len(passed),
                passed=tuple(passed),
                duration_ms=(time.monotonic() - started) * 1000,
            )
        each = each.otherwise
    raise BpfError(f"loading the recorder's programs: {passed[-1]}", hint)


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _compiled(program: ProgramFile, directory: str, kernel_headers: str, timeout_s: float) -> Compiled:
    """What was kept, or what is compiled now and kept. Raises BpfError."""
    alone = replace(program, otherwise=None)
    path = os.path.join(directory, KEPT + _name(alone, kernel_headers))
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return compiled.from_json(Path(path).read_bytes())
    text = _compile(alone, directory, kernel_headers, timeout_s)
    found = compiled.from_json(text)
    with contextlib.suppress(OSError):
        descriptor, temporary = tempfile.mkstemp(prefix="new-", dir=directory)
        with open(descriptor, "wb") as stream:
            stream.write(text)
        os.rename(temporary, path)
    return found


def _name(program: ProgramFile, kernel_headers: str) -> str:
    """Of this file for this boot of this kernel, by all that it is made of."""
    digest = hashlib.sha256(json.dumps([asdict(program), kernel_headers, *os.uname()]).encode())
    for path in (Path("/proc/sys/kernel/random/boot_id"), *sorted(compiler.ROOM.glob("**/*.[ch]"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _compile(program: ProgramFile, directory: str, kernel_headers: str, timeout_s: float) -> bytes:
    arguments = [sys.executable, "-m", compiler.__name__, directory, kernel_headers, str(os.getpid())]
    try:
        done = subprocess.run(
            [*arguments, json.dumps(asdict(program))],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BpfError(
            f"compiling the recorder's programs: not done within {timeout_s:.0f} s", "look at the load"
        ) from None
    # Of clang and LLVM, which end the process where they can't go on.
    said = done.stderr.decode("utf-8", "replace").strip()[-_SAID_CHARACTERS:]
    if not done.stdout:
        raise BpfError(f"{program.file}: the compiler ended without an answer: {said}", "freezeframe doctor")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise BpfError(f"{answer['error']}: {said}" if said else answer["error"], answer["hint"])
    return done.stdout


def _load(given: Compiled) -> tuple[dict[str, Map], tuple[int, ...]]:
    """Create the maps, load the programs, attach them; all or nothing. Raises OSError."""
    syscalls.lock_as_much_as_needed()
    maps: dict[str, Map] = {}
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as programs:
        for shape in given.maps:
            maps[shape.name] = _map(shape)
            undo.callback(os.close, maps[shape.name].fd)
        descriptors = [each.fd for each in maps.values()]

        def program(each: Attachment) -> int:
            kind = _KINDS[each.point.partition(":")[0]]
            code = compiled.with_maps(given.code[each.function], descriptors.__getitem__)
            loaded = syscalls.load_program(each.function, kind, code, _type_id(given, each.point))
            # Whatever it is attached to, or the table of continuations, holds it.
            programs.callback(os.close, loaded)
            return loaded

        for number, each in enumerate(given.continuations):
            maps[_CONTINUATIONS].put(_INDEX.pack(number), _INDEX.pack(program(each)))
        attached = []
        for each in given.attachments:
            attached.append(_attach(given, each.point, program(each)))
            undo.callback(os.close, attached[-1])
        undo.pop_all()
    return maps, tuple(attached)


def _map(shape: MapShape) -> Map:
    per_cpu = shape.kind in _PER_CPU
    return Map(
        name=shape.name,
        fd=syscalls.create_map(shape),
        key_size=shape.key_size,
        value_size=(shape.value_size + 7) // 8 * 8 if per_cpu else shape.value_size,
        max_entries=shape.max_entries,
        cpus=_possible_cpus() if per_cpu else 1,
    )


def _type_id(given: Compiled, point: str) -> int:
    return given.ids[point] if point.startswith("typed:") else 0


def _attach(given: Compiled, point: str, program: int) -> int:
    way, _, name = point.partition(":")
    if way == "tracepoint":
        return syscalls.attach_tracepoint(program, given.ids[point])
    return syscalls.attach_raw_tracepoint(program, name if way == "raw" else "")


def _possible_cpus() -> int:
    with open("/sys/devices/system/cpu/possible", encoding="ascii") as stream:
        return int(re.split(r"[-,]", stream.read().strip())[-1]) + 1
