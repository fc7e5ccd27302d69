"""Parsers of foreign files and memory maps: exact on good ones, bounded on any."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from freezeframe.agentd.host import file_locks
from freezeframe.agentd.host.native import btf, elf, mappings
from freezeframe.agentd.host.native.demangle import demangle
from freezeframe.agentd.host.native.symbols import SymbolCache, SymbolTable, build_index
from tests.support.fuzz import FUZZ


def make_elf(
    symbols: list[tuple[bytes, int, int, int, int]], *, build_id: bytes = b"\xab" * 20, kind: int = 2
) -> bytes:
    """An ELF file with a loaded segment at 0x1000, a build id, and symbols (name, info, section, address, size)."""
    names = b"\0"
    entries = b"\0" * 24
    for name, info, section, address, size in symbols:
        entries += struct.pack("<IBBHQQ", len(names), info, 0, section, address, size)
        names += name + b"\0"
    note = struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id
    at = 64 + 2 * 56
    note_at, symbols_at = at, at + len(note)
    names_at = symbols_at + len(entries)
    sections_at = names_at + len(names)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, sections_at, 0, 64, 56, 2, 64, 3, 0
    )
    segments = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0x1000, sections_at, sections_at, 4096)
    segments += struct.pack("<IIQQQQQQ", 4, 4, note_at, 0, 0, len(note), len(note), 4)
    sections = b"\0" * 64
    sections += struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, symbols_at, len(entries), 2, 0, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, names_at, len(names), 0, 0, 1, 0)
    return head + segments + note + entries + names + sections


FUNCTION, GLOBAL_FUNCTION, NO_TYPE, DATA = 0x02, 0x12, 0x10, 0x11


def table(symbols: list[tuple[bytes, int, int, int, int]]) -> SymbolTable:
    image = memoryview(make_elf(symbols))
    parsed = elf.parse(image)
    return SymbolTable(image, parsed, memoryview(build_index(image, parsed)))


@pytest.mark.parametrize(
    ("at", "value", "headers"),
    [
        (0, b"", 3 * 64),
        # libelf does not believe the size of a header that the file tells.
        (58, struct.pack("<H", 0x8040), 3 * 64),
        # More than fit into the file, and a number that is in the first header.
        (60, struct.pack("<H", 0xFFFF), 3 * 64),
        (60, struct.pack("<H", 0), None),
        (40, struct.pack("<Q", 1 << 63), None),
    ],
)
def test_section_headers_are_where_libelf_takes_them(at: int, value: bytes, headers: int | None) -> None:
    data = bytearray(make_elf([]))
    data[at : at + len(value)] = value
    found = elf.parse(memoryview(bytes(data))).headers
    assert (found.size if found is not None and found.size else None) == headers
    assert headers is None or found.offset + found.size == len(data)


def test_only_programs_and_libraries_are_loadable() -> None:
    data = bytearray(make_elf([]))
    assert elf.parse(memoryview(bytes(data))).loadable
    data[16:18] = struct.pack("<H", 1)
    assert not elf.parse(memoryview(bytes(data))).loadable


def test_an_elf_file() -> None:
    parsed = elf.parse(memoryview(make_elf([(b"f", FUNCTION, 1, 0x1500, 16)])))
    assert parsed.build_id == "ab" * 20
    assert not parsed.stripped
    assert parsed.machine == 62
    assert parsed.address(0x10) == 0x1010
    assert parsed.address(1 << 40) is None
    assert elf.parse(memoryview(make_elf([], kind=11))).stripped


def test_the_function_at_an_address() -> None:
    names = table(
        [
            (b"late", FUNCTION, 1, 0x2000, 0x10),
            (b"early", FUNCTION, 1, 0x1000, 0x10),
            (b"assembly", NO_TYPE, 1, 0x3000, 0),
            (b"$x", 0, 1, 0x3008, 0),
            (b".L1", 0, 1, 0x3008, 0),
            (b"data", DATA, 2, 0x1008, 8),
            (b"elsewhere", GLOBAL_FUNCTION, 0, 0x3010, 8),
            (b"alias", FUNCTION, 1, 0x4000, 8),
            (b"exported", GLOBAL_FUNCTION, 1, 0x4000, 8),
        ]
    )
    expected = {
        0xFFF: b"", 0x1000: b"early", 0x100F: b"early", 0x1010: b"", 0x2008: b"late",
        0x3000: b"assembly", 0x3020: b"assembly", 0x4004: b"exported", 0x4008: b"",
    }  # fmt: skip
    assert {address: names.find(address) for address in expected} == expected


@FUZZ
@given(st.binary(max_size=600))
@example(make_elf([(b"f", FUNCTION, 1, 0x1500, 16)]))
def test_no_file_breaks_the_elf_reader(data: bytes) -> None:
    read(memoryview(data))


@FUZZ
@given(st.integers(0, 2000), st.binary(min_size=1, max_size=16), st.integers(0, 1 << 64))
def test_no_damage_of_a_good_file_breaks_it(at: int, damage: bytes, address: int) -> None:
    good = bytearray(make_elf([(b"f%d" % i, FUNCTION, 1, 0x1000 + 16 * i, 16) for i in range(20)]))
    good[at : at + len(damage)] = damage
    read(memoryview(bytes(good)), address)


def read(image: memoryview, address: int = 0x1500) -> None:
    try:
        parsed = elf.parse(image)
    except elf.ElfError:
        return
    assert len(parsed.build_id) <= 128
    names = SymbolTable(image, parsed, memoryview(build_index(image, parsed)))
    assert len(names.find(address)) <= 4096
    parsed.address(address)


def test_the_real_files_of_this_process_agree_with_nm(tmp_path: Path) -> None:
    del tmp_path
    found = mappings.modules(mappings.read("/proc/self"))
    assert {b"[vdso]"} < {module.name for module in found}
    module = next(each for each in found if b"libc.so" in each.name or b"libc-" in each.name)
    descriptor = mappings.open_file("/proc/self", module)
    try:
        image = memoryview(os.pread(descriptor, 1 << 26, 0))
        identity = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    parsed = elf.parse(image)
    names = SymbolCache(None).table(image, parsed, identity)
    said = subprocess.run(
        ["nm", "-D", "--defined-only", module.name.decode()], capture_output=True, text=True, check=True
    )
    functions = [line.split() for line in said.stdout.splitlines() if " T " in line]
    wrong = [line for line in functions if not names.find(int(line[0], 16))]
    assert len(functions) > 500
    assert wrong == []


def test_mappings_and_modules() -> None:
    text = (
        b"00400000-00401000 r--p 00000000 08:01 11   /opt/a program\n"
        b"00401000-00403000 r-xp 00001000 08:01 11   /opt/a program\n"
        b"00403000-00404000 rw-p 00003000 08:01 11   /opt/a program\n"
        b"00404000-00405000 rw-p 00000000 00:00 0 \n"
        b"7f0000000000-7f0000001000 r--p 00000000 08:01 12   /lib/x.so (deleted)\n"
        b"7f0000001000-7f0000002000 r-xp 00001000 08:01 12   /lib/x.so (deleted)\n"
        b"7f0000003000-7f0000004000 r--p 00000000 08:01 13   /usr/share/data\n"
        b"7ffc00000000-7ffc00001000 rw-p 00000000 00:00 0    [stack]\n"
        b"7ffc00002000-7ffc00004000 r-xp 00000000 00:00 0    [vdso]\n"
        b"nonsense\n"
    )
    found = mappings.parse(text)
    assert len(found) == 9
    assert [(module.name, module.start, module.end) for module in mappings.modules(found)] == [
        (b"/opt/a program", 0x400000, 0x404000),
        (b"/lib/x.so (deleted)", 0x7F0000000000, 0x7F0000002000),
        (b"[vdso]", 0x7FFC00002000, 0x7FFC00004000),
    ]


@FUZZ
@given(st.binary(max_size=400))
def test_no_text_breaks_the_parsers_of_proc(data: bytes) -> None:
    mappings.modules(mappings.parse(data))
    file_locks.parse(data)


def test_file_locks() -> None:
    text = (
        b"1: POSIX  ADVISORY  WRITE 812 00:2f:123 0 EOF\n"
        b"1: -> POSIX  ADVISORY  WRITE 911 00:2f:123 0 EOF\n"
        b"1: -> POSIX  ADVISORY  READ 912 00:2f:123 0 EOF\n"
        b"2: FLOCK  ADVISORY  WRITE 7 00:2f:124 0 EOF\n"
        b"3: OFDLCK ADVISORY  WRITE -1 00:2f:125 0 EOF\n"
        b"3: -> OFDLCK ADVISORY  WRITE -1 00:2f:125 0 EOF\n"
    )
    found = file_locks.parse(text)
    assert found == (
        file_locks.FileLock(kind="posix", file="00:2f:123", owner_pid=812, waiting_pids=(911, 912)),
        file_locks.FileLock(kind="ofd", file="00:2f:125", owner_pid=0, waiting_pids=(-1,)),
    )


@FUZZ
@given(st.binary(max_size=400))
def test_no_bytes_break_the_btf_reader(data: bytes) -> None:
    for each in (data, struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(data), 0, len(data)) + data):
        with pytest.raises(btf.BtfError):
            btf.parse(each)


@pytest.mark.skipif(not os.path.exists(btf.PATH), reason="this kernel has no BTF")
def test_the_btf_of_this_kernel() -> None:
    facts = btf.read()
    assert facts.function > 0
    assert {"pid", "tgid", "nvcsw", "nivcsw"} <= set(facts.offsets)
    assert facts.offsets["tgid"] == facts.offsets["pid"] + 4


@pytest.mark.parametrize(
    ("mangled", "expected"),
    [
        (b"_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
        (b"_RNvCs1234_7mycrate3foo", "mycrate::foo"),
        (b"_RNvCs1234_7mycrate3foo.6609", "mycrate::foo"),
        (b"_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back(int const&)"),
        (b"pthread_mutex_lock@@GLIBC_2.2.5", "pthread_mutex_lock"),
        (b"main", "main"),
        (b"_Znonsense", "_Znonsense"),
        (b"\x1b[31mred", "\\x1b[31mred"),
    ],
)
def test_demangled(mangled: bytes, expected: str) -> None:
    assert demangle(mangled) == expected


@FUZZ
@given(
    st.one_of(
        st.binary(max_size=200), st.text("_ZNRSILPKE0123456789abcs", max_size=80).map(lambda s: b"_" + s.encode())
    )
)
def test_no_name_breaks_demangling_or_gets_through_unescaped(name: bytes) -> None:
    said = demangle(name)
    assert said.isprintable()
    assert len(said) <= 513 * 10


def test_names_of_this_interpreter_are_found_by_the_cache(tmp_path: Path) -> None:
    cache = SymbolCache(str(tmp_path / "symbols"))
    path = os.path.realpath(sys.executable)
    with open(path, "rb") as file:
        image, identity = memoryview(file.read()), os.fstat(file.fileno())
    parsed = elf.parse(image)
    first = cache.table(image, parsed, identity)
    again = cache.table(image, parsed, identity)
    assert len(first) == len(again)
    assert len(list((tmp_path / "symbols").iterdir())) == 1
