"""The readers of CPython's memory over memory that lies: one real process recorded page by page, then damaged."""

from __future__ import annotations

import contextlib
import random
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host.cpython.frames import Codes
from freezeframe.agentd.host.cpython.interpreter import NotPythonError, UnsupportedPythonError, attach, parse_maps
from freezeframe.agentd.host.cpython.look import look
from freezeframe.agentd.host.cpython.objects import TYPE_SYMBOLS, Objects
from freezeframe.agentd.host.cpython.symbols import SymbolTable
from freezeframe.agentd.host.cpython.tables import TABLES
from freezeframe.agentd.host.cpython.task_set import NoAsyncioError, section_address
from freezeframe.agentd.host.cpython.threads import StackWalker, threads_of
from freezeframe.agentd.host.target_memory import TargetMemory, TargetMemoryError
from tests.support.children import PROGRAMS, child
from tests.support.fuzz import FUZZ, PATIENCE

pytestmark = [pytest.mark.needs("root"), PATIENCE]

PAGE = 4096
# That the target has, at least.
TASKS = 20
MACHINE = "x86_64"
# What a reader may say of memory that is not what it should be.
ALLOWED = (TargetMemoryError, UnsupportedPythonError, NotPythonError, NoAsyncioError)


class Pages(dict[int, bytes]):
    """By address; a case that fails is told without them."""

    def __repr__(self) -> str:
        return f"{len(self)} pages"


class Recorder(TargetMemory):
    """Keeps every page that is read."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.pages = Pages()

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes | None]:
        for address, size in ranges:
            for page in range(address & -PAGE, address + max(size, 1), PAGE):
                if page not in self.pages and (data := super().read_many([(page, PAGE)])[0]) is not None:
                    self.pages[page] = data
        return super().read_many(ranges)


class Recorded(TargetMemory):
    """Recorded pages, with damage; counts what is asked of it."""

    def __init__(self, pages: dict[int, bytes], damage: dict[int, bytes], max_bytes: int = 64 << 20) -> None:
        super().__init__(1)
        self.pages = pages
        self.damage = damage
        self.left = max_bytes

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes | None]:
        return [self.one(address, size) for address, size in ranges]

    def one(self, address: int, size: int) -> bytes | None:
        if not 0 < address < 1 << 56 or not 0 <= size <= 4 << 20:
            return None
        self.left -= size
        if self.left < 0:
            raise TargetMemoryError("more bytes than it may")
        parts = []
        for page in range(address & -PAGE, address + max(size, 1), PAGE):
            data = self.damage.get(page) or self.pages.get(page)
            if data is None:
                return None
            parts.append(data)
        start = address & (PAGE - 1)
        return b"".join(parts)[start : start + size]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[int, bytes]]]:
    """A process that stays, and the pages that one look at it reads."""
    truth = tmp_path_factory.mktemp("hostile") / "truth.json"
    with child(sys.executable, str(PROGRAMS / "asyncio_tasks.py"), "12", "0", str(truth)) as process:
        directory = f"/proc/{process.pid}"
        for _ in range(20):
            memory = Recorder(process.pid)
            see_all(memory, directory)
            # It moved while it was recorded: what was read of it does not belong together.
            with contextlib.suppress(TargetMemoryError):
                if see_all(Recorded(memory.pages, {}), directory) > TASKS:
                    break
        yield directory, memory.pages


def see_all(memory: TargetMemory, directory: str) -> int:
    interpreter = attach(directory, memory, MACHINE)
    walker = StackWalker(interpreter, Codes(interpreter.objects))
    for thread in threads_of(interpreter):
        walker.walk(thread, 200)
    return len(look(interpreter, directory, MACHINE, None, limit=1000).tasks)


def damaged(pages: dict[int, bytes], seed: int) -> dict[int, bytes]:
    """Some words of some pages, each replaced by what hurts: other objects, nothing, huge, negative, odd, itself."""
    chance = random.Random(seed)
    addresses = list(pages)
    result: dict[int, bytearray] = {}
    for _ in range(chance.choice((1, 3, 10, 100, 2000))):
        page = chance.choice(addresses)
        data = result.setdefault(page, bytearray(pages[page]))
        at = chance.randrange(PAGE // 8) * 8
        word = chance.choice(
            (
                0,
                1,
                (1 << 64) - 1,
                1 << 63,
                chance.getrandbits(64),
                chance.getrandbits(20),
                page + at,
                page + chance.randrange(PAGE // 8) * 8,
                chance.choice(addresses) + chance.randrange(PAGE // 8) * 8,
                # A word from elsewhere, which is most likely a pointer to an object.
                struct.unpack_from("<Q", pages[chance.choice(addresses)], chance.randrange(PAGE // 8) * 8)[0],
            )
        )
        struct.pack_into("<Q", data, at, word)
    return {page: bytes(data) for page, data in result.items()}


def test_undamaged_it_is_read_whole(recorded: tuple[str, dict[int, bytes]]) -> None:
    directory, pages = recorded
    assert see_all(Recorded(pages, {}), directory) > TASKS


@FUZZ
@given(seed=st.integers(0, 1 << 62))
def test_a_look_at_damaged_memory_ends_with_a_reason_or_with_what_is_there(
    recorded: tuple[str, dict[int, bytes]], seed: int
) -> None:
    directory, pages = recorded
    begin = time.thread_time()
    try:
        found = see_all(Recorded(pages, damaged(pages, seed)), directory)
    except ALLOWED:
        found = 0
    assert found <= 1000
    assert time.thread_time() - begin < 30  # of its own: the machine may be busy


@FUZZ
@given(data=st.binary(max_size=600), at=st.integers(0, 300), minor=st.sampled_from((10, 11, 12, 13, 14)))
def test_any_bytes_as_objects(data: bytes, at: int, minor: int) -> None:
    base = 1 << 20
    # Every type is one of the words of the page, so that the bytes may pass for any.
    memory = Recorded({base: data.ljust(PAGE, b"\0")}, {})
    objects = Objects(memory, TABLES[f"3.{minor}"], minor, dict.fromkeys(TYPE_SYMBOLS, base))
    codes = Codes(objects)
    address = base + at
    for read in (
        objects.string, lambda a: objects.data(a, 1000), objects.integer, objects.real, objects.type_of, objects.type,
        objects.mapping, objects.dict_items, objects.is_dict, objects.attributes, lambda a: objects.slot(a, "name"),
        objects.set_items, objects.sequence, codes.code,
    ):  # fmt: skip
        try:
            read(address)
        except TargetMemoryError:
            continue


@FUZZ
@given(data=st.binary(max_size=2000), size=st.integers(0, 2000))
def test_any_bytes_as_an_elf_file(data: bytes, size: int) -> None:
    elf = Path(sys.executable).resolve().read_bytes()[:PAGE]
    mixed = (elf[:size] + data)[:PAGE].ljust(PAGE, b"\0")
    base = 1 << 20
    with contextlib.suppress(TargetMemoryError):
        SymbolTable(Recorded({base: mixed}, {}), base).address("_PyRuntime")
    section_address(lambda at, count: mixed[at : at + count], b".AsyncioDebug")


@FUZZ
@given(data=st.binary(max_size=400), line=st.booleans())
def test_any_bytes_as_maps(data: bytes, line: bool) -> None:
    parse_maps(b"55-66 r-xp 00000000 00:00 1 /a" + data if line else data)
