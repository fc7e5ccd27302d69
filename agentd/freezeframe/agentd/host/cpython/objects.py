"""Python objects in another process: strings, numbers, types, containers, instance attributes.

A reader gives what it finds or raises UnreadableMemoryError; what is found was there at some moment of the read.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from freezeframe.agentd.host.target_memory import PagedMemory, TargetMemory, UnreadableMemoryError
from freezeframe.agentd.host.text import escape

# More than any of these has that is worth reading.
_MAX_STRING = 1 << 16
_MAX_ENTRIES = 1 << 18
_MAX_TABLE = 1 << 19
_MAX_ITEMS = 1 << 18
_MAX_BASES = 16
_MAX_INDEX_BITS = 22
_WORDS_AT_ONCE = 1 << 18
_TEXT_BYTES = 500
# Bytes read at once where the size of an object is not known yet: most strings, most types.
_STRING_GUESS = 160
_TYPE_NAME = 80
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
_WORD = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")

# tp_flags
_INLINE_VALUES = 1 << 2
_MANAGED_DICT = 1 << 4
_HEAP_TYPE = 1 << 9
# Where a managed dict is, before the object: 3.11, and later versions.
_VALUES_311, _DICT_312 = -32, -24
_DUMMY_HASH = (1 << 64) - 1
# Digits of an int that are worth reading.
_MAX_DIGITS = 8

# Name in this room -> symbol of the type object -> its tp_name.
TYPE_SYMBOLS: Mapping[str, tuple[str, str]] = {
    "str": ("PyUnicode_Type", "str"),
    "bytes": ("PyBytes_Type", "bytes"),
    "int": ("PyLong_Type", "int"),
    "float": ("PyFloat_Type", "float"),
    "tuple": ("PyTuple_Type", "tuple"),
    "list": ("PyList_Type", "list"),
    "dict": ("PyDict_Type", "dict"),
    "set": ("PySet_Type", "set"),
    "function": ("PyFunction_Type", "function"),
    "method": ("PyMethod_Type", "method"),
    "cell": ("PyCell_Type", "cell"),
    "code": ("PyCode_Type", "code"),
    "coroutine": ("PyCoro_Type", "coroutine"),
    "generator": ("PyGen_Type", "generator"),
    "async_generator": ("PyAsyncGen_Type", "async_generator"),
}


@dataclass(slots=True, kw_only=True)
class Type:
    """What is read of a type object, once."""

    name: str
    flags: int
    dictoffset: int
    basicsize: int
    # Address of the keys that instances share; 0 when none.
    keys: int
    base: int


class Objects:
    """Reads the objects of one process."""

    def __init__(
        self,
        memory: TargetMemory,
        layout: Mapping[str, int],
        minor: int,
        types: Mapping[str, int],
        lasting: PagedMemory | None = None,
    ) -> None:
        """`types` are addresses of type objects, by the names of TYPE_SYMBOLS; `minor` is that of the version.

        `lasting` is a view of the same memory for what stays as it was made: types and code.
        """
        self.memory = memory
        self.lasting = lasting if lasting is not None else PagedMemory(memory)
        self.layout = layout
        self.minor = minor
        self.types = types
        self._str = types["str"]
        self._type_places = tuple(layout[f"type.{key}"] for key in ("name", "basicsize", "flags", "base", "dictoffset"))
        self._strings: dict[int, str] = {}
        self._known: dict[int, Type] = {}
        self._slots: dict[tuple[int, str], int] = {}

    def over(self, memory: TargetMemory) -> Objects:
        """Give the same reader over another view of the same memory; strings and types that are known stay known."""
        other = Objects(memory, self.layout, self.minor, self.types, self.lasting)
        other._strings, other._known, other._slots = self._strings, self._known, self._slots
        return other

    # Strings and numbers

    def string(self, address: int) -> str:
        """Read a str. Raises TargetMemoryError."""
        found = self._strings.get(address)
        if found is None:
            found = self.strings([address])[0]
        if found is None:
            raise UnreadableMemoryError(f"no str at {address:#x}")
        return found

    def text(self, address: int) -> str:
        """Read a str as text that may be shown: cut, escaped. Raises TargetMemoryError."""
        return printable(self.string(address))

    def strings(self, addresses: Sequence[int]) -> list[str | None]:
        """Read many str; None where none is. Raises TargetMemoryError for what ends every read."""
        known = self._strings
        wanted = [address for address in dict.fromkeys(addresses) if address not in known]
        if not wanted:
            return [known[address] for address in addresses]
        guesses = self.memory.read_many([(address, _STRING_GUESS) for address in wanted])
        rest: list[tuple[int, int, int, str]] = []
        for address, guess in zip(wanted, guesses, strict=True):
            data = guess if guess is not None else self._short(address)
            if data is None:
                continue
            place = self._string_place(data)
            if place is None:
                continue
            offset, size, encoding = place
            if offset + size <= len(data):
                known[address] = data[offset : offset + size].decode(encoding, "replace")
            else:
                rest.append((address, offset, size, encoding))
        parts = self.memory.read_many([(address + offset, size) for address, offset, size, _ in rest])
        for (address, _, _, encoding), part in zip(rest, parts, strict=True):
            if part is not None:
                known[address] = part.decode(encoding, "replace")
        return [known.get(address) for address in addresses]

    def _short(self, address: int) -> bytes | None:
        """Read what is left of a page where a guess went beyond the mapping."""
        try:
            return self.memory.read_up_to(address, _STRING_GUESS)
        except UnreadableMemoryError:
            return None

    def _string_place(self, data: bytes) -> tuple[int, int, str] | None:
        layout = self.layout
        if len(data) < layout["str.ascii"]:
            return None
        kind_of, length = _PAIR.unpack_from(data, 8)
        if kind_of != self._str or length > _MAX_STRING:
            return None
        (state,) = struct.unpack_from("<I", data, layout["str.state"])
        encoding = _ENCODINGS.get(state >> 2 & 7)
        if encoding is None or not state >> 5 & 1:  # not compact
            return None
        offset = layout["str.ascii"] if state >> 6 & 1 else layout["str.compact"]
        return offset, length * (state >> 2 & 7), encoding

    def data(self, address: int, limit: int) -> bytes:
        """Read a bytes object of up to `limit` bytes. Raises TargetMemoryError."""
        head = self.memory.read(address, 24)
        kind, size = _PAIR.unpack_from(head, 8)
        if kind != self.types["bytes"] or size > limit:
            raise UnreadableMemoryError(f"no bytes of at most {limit} at {address:#x}")
        return self.memory.read(address + self.layout["bytes.data"], size) if size else b""

    def integer(self, address: int) -> int:
        """Read an int, or an instance of a subclass. Raises TargetMemoryError."""
        layout = self.layout
        (tag,) = struct.unpack("<q", self.memory.read(address + layout["int.tag"], 8))
        if self.minor >= 12:
            count, negative = tag >> 3, (tag & 3) == 2
            if (tag & 3) == 1:
                return 0
        else:
            count, negative = abs(tag), tag < 0
        if not 0 <= count <= _MAX_DIGITS:
            raise UnreadableMemoryError(f"no int of a sane size at {address:#x}")
        digits = (
            struct.unpack(f"<{count}I", self.memory.read(address + layout["int.digits"], 4 * count)) if count else ()
        )
        value: int = sum(digit << 30 * index for index, digit in enumerate(digits))
        return -value if negative else value

    def real(self, address: int) -> float:
        """Read a float. Raises TargetMemoryError."""
        head = self.memory.read(address, 24)
        if _WORD.unpack_from(head, 8)[0] != self.types["float"]:
            raise UnreadableMemoryError(f"no float at {address:#x}")
        value: float = struct.unpack_from("<d", head, self.layout["float.value"])[0]
        return value

    # Types

    def type_of(self, address: int) -> Type:
        """Read the type of an object. Raises TargetMemoryError."""
        return self.type(self.memory.word(address + 8))

    def type(self, address: int) -> Type:
        """Read a type object. Raises TargetMemoryError."""
        found = self._known.get(address)
        if found is not None:
            return found
        memory = self.lasting
        data = memory.read(address, self._type_places[-1] + 8)
        name_at, basicsize, flags, base, dictoffset = (_WORD.unpack_from(data, at)[0] for at in self._type_places)
        raw = memory.read_up_to(name_at, _TYPE_NAME)
        name, end, _ = raw.partition(b"\0")
        if not end and len(raw) < _TYPE_NAME:
            name, end, _ = memory.read(name_at, _TYPE_NAME).partition(b"\0")
        if not end or not name or basicsize > 1 << 20:
            raise UnreadableMemoryError(f"no type at {address:#x}")
        keys = memory.word(address + self.layout["type.keys"]) if flags & _HEAP_TYPE else 0
        found = self._known[address] = Type(
            name=escape(name.rpartition(b".")[2], _TYPE_NAME),
            flags=flags,
            dictoffset=dictoffset - (1 << 64) if dictoffset >> 63 else dictoffset,
            basicsize=basicsize,
            keys=keys,
            base=base,
        )
        return found

    def is_instance(self, type_address: int, of: int) -> bool:
        """Tell whether a type is `of` or derives from it by single inheritance. Raises TargetMemoryError."""
        for _ in range(_MAX_BASES):
            if type_address == of:
                return True
            if not type_address:
                return False
            type_address = self.type(type_address).base
        return False

    # Containers

    def mapping(self, address: int) -> dict[str, int]:
        """Read a dict: the values' addresses by those of its keys that are str. Raises TargetMemoryError."""
        return self._named(self._dict_entries(address))

    def members(self, address: int, names: Collection[str]) -> dict[str, int]:
        """Read some members of a dict with keys that are str: those of these names. Raises TargetMemoryError."""
        entries = self._dict_entries(address)
        # Of most keys nothing but the length need be read.
        lengths = {len(name).to_bytes(8, "little") for name in names}
        told = self.memory.read_many([(key + 16, 8) for key, _ in entries])
        found = self._named([entry for entry, length in zip(entries, told, strict=True) if length in lengths])
        return {name: value for name, value in found.items() if name in names}

    def dict_items(self, address: int) -> list[tuple[int, int]]:
        """Read a dict: addresses of keys and values. Raises TargetMemoryError."""
        return self._dict_entries(address)

    def is_dict(self, address: int) -> bool:
        """Tell whether a dict, or an instance of a subclass, is there. Raises TargetMemoryError."""
        return self.is_instance(self.memory.word(address + 8), self.types["dict"])

    def _named(self, entries: Sequence[tuple[int, int]]) -> dict[str, int]:
        names = self.strings([key for key, _ in entries])
        return {name: value for name, (_, value) in zip(names, entries, strict=True) if name is not None}

    def _dict_entries(self, address: int) -> list[tuple[int, int]]:
        layout = self.layout
        data = self.memory.read(address, 48)
        (keys,) = _WORD.unpack_from(data, layout["dict.keys"])
        (values,) = _WORD.unpack_from(data, layout["dict.values"])
        if values and self.minor >= 11:
            values += layout["values.first"]
        return self._entries(keys, values)

    def _entries(self, keys: int, values: int) -> list[tuple[int, int]]:
        """Entries of a dict-keys object; the values of a split one are elsewhere."""
        layout, memory = self.layout, self.memory
        start = layout["keys.indices"]
        head = memory.read(keys, start)
        (count,) = struct.unpack_from("<q", head, layout["keys.entries"])
        if self.minor == 10:
            (size,) = struct.unpack_from("<q", head, layout["keys.size"])
            if not 0 < size <= _MAX_TABLE:
                raise UnreadableMemoryError(f"no dict keys at {keys:#x}")
            indices = size * (1 if size <= 0xFF else 2 if size <= 0xFFFF else 4)
            general = True
        else:
            bits = head[layout["keys.log2_index_bytes"]]
            if bits > _MAX_INDEX_BITS:
                raise UnreadableMemoryError(f"no dict keys at {keys:#x}")
            indices = 1 << bits
            general = head[layout["keys.kind"]] == 0
        if not 0 <= count <= _MAX_ENTRIES:
            raise UnreadableMemoryError(f"no dict keys at {keys:#x}")
        if not count:
            return []
        # General entries begin with the hash.
        words = struct.unpack(
            f"<{count * (3 if general else 2)}Q", memory.read(keys + start + indices, count * (24 if general else 16))
        )
        entry_keys = words[1::3] if general else words[::2]
        if values:
            entry_values: Sequence[int] = struct.unpack(f"<{count}Q", memory.read(values, 8 * count))
        else:
            entry_values = words[2::3] if general else words[1::2]
        return [(key, value) for key, value in zip(entry_keys, entry_values, strict=True) if key and value]

    def attributes(self, address: int) -> dict[str, int]:
        """Read the addresses of an instance's attributes, not those in slots. Raises TargetMemoryError."""
        kind = self.type_of(address)
        if self.minor >= 11 and kind.flags & _MANAGED_DICT:
            return self._managed(address, kind)
        if kind.dictoffset <= 0:
            return {}
        found = self.memory.word(address + kind.dictoffset)
        return self.mapping(found) if found else {}

    def _managed(self, address: int, kind: Type) -> dict[str, int]:
        values = 0
        if self.minor == 11:
            values, found = _PAIR.unpack(self.memory.read(address + _VALUES_311, 16))
        else:
            found = self.memory.word(address + _DICT_312)
            if self.minor == 12:
                if found & 1:  # a tagged pointer to the values
                    values, found = found + 1, 0
            elif not found and kind.flags & _INLINE_VALUES:
                values = address + kind.basicsize + self.layout["values.first"]
        if found:
            return self.mapping(found)
        if not values or not kind.keys:
            return {}
        return self._named(self._entries(kind.keys, values))

    def slot(self, address: int, name: str) -> int:
        """Read the address of an attribute that is kept in a slot; 0 when it has none. Raises TargetMemoryError."""
        memory = self.memory
        kind = memory.word(address + 8)
        key = (kind, name)
        offset = self._slots.get(key)
        if offset is None:
            offset = self._slots[key] = self._slot_offset(kind, name)
        return memory.word(address + offset) if offset else 0

    def _slot_offset(self, kind: int, name: str) -> int:
        layout, memory = self.layout, self.memory
        for _ in range(_MAX_BASES):
            members = memory.word(kind + layout["type.dict"])
            member = self.mapping(members).get(name) if members else None
            if member:
                if self.type_of(member).name != "member_descriptor":
                    return 0
                offset = memory.word(memory.word(member + layout["member.definition"]) + layout["definition.offset"])
                return offset if 16 <= offset < 1 << 16 else 0
            kind = self.type(kind).base
            if not kind:
                break
        return 0

    def attribute(self, address: int, name: str) -> int:
        """Read the address of an attribute, also one in a slot; 0 when it has none. Raises TargetMemoryError."""
        return self.attributes(address).get(name) or self.slot(address, name)

    def set_items(self, address: int) -> list[int]:
        """Read the addresses of a set's members. Raises TargetMemoryError."""
        layout = self.layout
        data = self.memory.read(address, layout["set.table"] + 8)
        kind, mask, table = (
            _WORD.unpack_from(data, layout[key])[0] for key in ("object.type", "set.mask", "set.table")
        )
        if not self.is_instance(kind, self.types["set"]) or mask > _MAX_TABLE:
            raise UnreadableMemoryError(f"no set at {address:#x}")
        words = self._words(table, 2 * (mask + 1))
        return [key for key, hashed in zip(words[::2], words[1::2], strict=True) if key and hashed != _DUMMY_HASH]

    def sequence(self, address: int) -> list[int]:
        """Read the addresses of a list's or tuple's items. Raises TargetMemoryError."""
        data = self.memory.read(address, 32)
        kind, size = _PAIR.unpack_from(data, 8)
        if size > _MAX_ITEMS:
            raise UnreadableMemoryError(f"no list or tuple at {address:#x}")
        if self.is_instance(kind, self.types["list"]):
            (items,) = _WORD.unpack_from(data, self.layout["list.items"])
        elif self.is_instance(kind, self.types["tuple"]):
            items = address + self.layout["tuple.items"]
        else:
            raise UnreadableMemoryError(f"no list or tuple at {address:#x}")
        return list(self._words(items, size))

    def _words(self, address: int, count: int) -> tuple[int, ...]:
        """Read words, in several reads where they are many."""
        found: list[int] = []
        for first in range(0, count, _WORDS_AT_ONCE):
            part = min(_WORDS_AT_ONCE, count - first)
            found += struct.unpack(f"<{part}Q", self.memory.read(address + 8 * first, 8 * part))
        return tuple(found)


def printable(value: str) -> str:
    """Text that may be shown: cut after 500 bytes, control characters escaped."""
    if len(value) <= _TEXT_BYTES and value.isascii() and value.isprintable():
        return value
    return escape(value.encode("utf-8", "surrogatepass"), _TEXT_BYTES)
