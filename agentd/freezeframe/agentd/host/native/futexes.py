"""What a thread that waits on a futex waits for: the kind of lock and its owner, as far as the lock tells.

By the functions on the thread's stack, checked against the lock's memory; without names by the memory alone where its
shape leaves no doubt. Layouts: glibc's nptl (pthread_mutex_t, pthread_rwlock_t, pthread_cond_t, FILE locks), CPython's
GIL, Rust's std and parking_lot. All of it is foreign memory: what does not fit is not believed.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from freezeframe.agentd.host.native.machine import Machine
from freezeframe.agentd.host.waits import Read, Wait
from freezeframe.judge.model import Confidence

Level = Confidence.Level

# Innermost frames in which the waiting function is looked for.
FRAMES = 14
# Kind by function.
_BY_FUNCTION: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("gil", r"^(take_gil|PyEval_(RestoreThread|AcquireThread|AcquireLock))$"),
        ("python_lock", r"^(PyThread_acquire_lock_timed|_PyMutex_LockTimed|_PySemaphore_Wait)$"),
        ("parking_lot_mutex", r"parking_lot::raw_mutex::RawMutex::lock_slow"),
        ("parking_lot_rwlock", r"parking_lot::raw_rwlock::RawRwLock::lock_(shared|exclusive|upgradable)_slow"),
        ("tokio_park", r"tokio::runtime::.*[Pp]ark"),
        ("parking_lot_condvar", r"parking_lot::condvar::"),
        ("rust_mutex", r"std::sys::.*[Mm]utex.*lock_contended"),
        ("rust_rwlock", r"std::sys::.*[Rr]w_?[Ll]ock.*(read|write)_contended"),
        ("rust_condvar", r"std::sys::.*[Cc]ondvar"),
        ("rust_once", r"std::sys::.*[Oo]nce.*(call|wait)"),
        ("rust_park", r"std::sys::.*(thread_parking|Parker)|std::thread::.*park"),
        ("join", r"pthread_(join|clockjoin_ex|timedjoin|clockjoin)"),
        ("rwlock", r"pthread_rwlock_"),
        ("condvar", r"pthread_cond_(wait|timedwait|clockwait)"),
        ("barrier", r"pthread_barrier_wait"),
        ("semaphore", r"(sem_|new_sem_|sem)(wait|timedwait|clockwait)|do_futex_wait|sem_wait"),
        ("once", r"pthread_once"),
        ("pthread_mutex", r"pthread_mutex_(lock|timedlock|clocklock)|lll_(timed)?lock_wait|lll_mutex_lock"),
    )
)
# What is built of a kind, and within how many frames above it that is seen.
_BUILT_OF = {
    "condvar": frozenset({"gil", "python_lock"}),
    "semaphore": frozenset({"python_lock"}),
    "parking_lot_condvar": frozenset({"tokio_park"}),
    "rust_condvar": frozenset({"tokio_park"}),
    "rust_park": frozenset({"tokio_park"}),
}
_ABOVE = 4
# Kinds whose word has no owner in it: one is looked for on the other threads' stacks.
UNNAMED_OWNER = frozenset({"rust_mutex", "rust_rwlock", "parking_lot_mutex", "parking_lot_rwlock"})

_MUTEX = struct.Struct("<IIiIi")
_MUTEX_KIND = 0x7F
_MUTEX_KINDS, _MUTEX_ROBUST, _MUTEX_PI = 3, 0x10, 0x20
_TID_MASK = 0x3FFFFFFF
_PRIVATE = 0x80
_CONTENDED = 2
# pthread_rwlock_t: waiters wait on words 2 and 3; the writer's thread id is word 6.
_RWLOCK_WORDS, _RWLOCK_BYTES, _RWLOCK_WRITER = (8, 12), 32, 24
# struct pthread of glibc on x86-64: where the thread's id is.
_TID_OFFSETS = {"x86_64": (720,), "aarch64": (208,)}
# struct _gil_runtime_state: interval, last_holder, locked, switch_number, cond. A waiter waits on a word of the
# condition: the group's signals, by version of glibc.
_GIL_COND, _GIL_HOLDER, _GIL_LOCKED, _COND_WORDS = 32, 8, 16, (40, 44, 32, 36)
_THREAD_STATE_BYTES = 512
# parking_lot_core's ThreadData: the word that the thread sleeps on is near the key of what it waits for.
_PARKED_BEFORE, _PARKED_BYTES, _LOCKED_AND_PARKED = 64, 96, 3
_MAX_COUNT = 1_000_000
# A lock of std has its data within so many bytes.
_DATA_BYTES = 64
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a thread waits for."""

    kind: str
    # Of the lock where it is known, else of the word.
    address: int
    # Thread id as the target's pid namespace has it; None when the lock does not tell.
    owner: int | None = None
    confidence: Confidence.Level = Level.UNSPECIFIED
    # The lock may be shared with other processes.
    shared: bool = False
    # Thread id of the owner that it names, who is none of the process's threads any more; 0 = none.
    ended_owner: int = 0


def classify(functions: Sequence[str], wait: Wait, read: Read, tids: Collection[int], machine: Machine) -> Held:  # noqa: PLR0911
    """Tell kind and owner; `tids` are the process's threads as its pid namespace numbers them. Never raises."""
    kind = kind_of(functions)
    shared = wait.call == "futex" and not wait.flags & _PRIVATE
    if wait.operation == "lock_pi":
        # The kernel's own contract: the word is the owner's id.
        owner = _word(read, wait.address) & _TID_MASK
        held = Held(kind="pthread_mutex", address=wait.address, shared=shared)
        return _owned(held, owner, tids, Level.HIGH) if owner in tids or (shared and owner) else held
    found = Held(kind=kind or "futex", address=wait.address, shared=shared)
    if kind in {"gil", "condvar"}:
        # Where Python has no names, it is a condition variable with something of Python's around it.
        return gil(wait.address, read, tids, machine) or found
    if kind == "join":
        # The word of a thread is its id, until the kernel clears it.
        return _owned(found, wait.expected, tids, Level.HIGH)
    if kind == "rwlock":
        return _rwlock(wait.address, read, tids) or found
    if kind in ("", "pthread_mutex"):
        mutex = _mutex(wait, read, tids, named=bool(kind), shared=shared) or found
        return mutex if mutex.owner is not None else _file_lock(mutex, read, tids, machine)
    if kind in {"parking_lot_mutex", "parking_lot_rwlock"}:
        return _parked(found, read)
    return found


def kind_of(functions: Sequence[str]) -> str:
    """Kind by the functions of a stack, innermost first; empty when none of them tells."""
    kinds = [_kind_of(name) if name else "" for name in functions[:FRAMES]]
    at = next((index for index, kind in enumerate(kinds) if kind), None)
    if at is None:
        return ""
    # The innermost one counts, unless it is what another one right above it is built of.
    built = _BUILT_OF.get(kinds[at], frozenset())
    return next((kind for kind in kinds[at + 1 : at + 1 + _ABOVE] if kind in built), kinds[at])


@functools.lru_cache(maxsize=4096)
def _kind_of(function: str) -> str:
    return next((kind for kind, pattern in _BY_FUNCTION if pattern.search(function)), "")


def _owned(held: Held, owner: int, tids: Collection[int], confidence: Confidence.Level) -> Held:
    known = owner in tids or held.shared
    return Held(
        kind=held.kind,
        address=held.address,
        owner=owner if owner and known else None,
        confidence=confidence if owner and known else Level.UNSPECIFIED,
        shared=held.shared,
    )


def _mutex(wait: Wait, read: Read, tids: Collection[int], *, named: bool, shared: bool) -> Held | None:
    """A pthread_mutex_t: word, count, owner, users, kind. None when it is none."""
    data = read(wait.address, _MUTEX.size)
    if data is None or len(data) < _MUTEX.size:
        return None
    word, count, owner, users, kind = _MUTEX.unpack(data)
    robust = bool(kind & _MUTEX_ROBUST)
    if kind & _MUTEX_KIND & ~_MUTEX_ROBUST & ~_MUTEX_PI > _MUTEX_KINDS or count > _MAX_COUNT or users > _MAX_COUNT:
        return None
    if robust:
        owner = word & _TID_MASK
    elif word != _CONTENDED:
        return None
    if owner not in tids and not (shared and owner > 0):
        # Being handed over (0), or its owner has ended.
        ended = owner if owner > 0 and users and not shared else 0
        held = Held(kind="pthread_mutex", address=wait.address, shared=shared, ended_owner=ended)
        return held if named else None
    if not named and not users:
        return None
    return Held(
        kind="pthread_mutex",
        address=wait.address,
        owner=owner,
        confidence=Level.HIGH if named else Level.MEDIUM,
        shared=shared,
    )


def _file_lock(found: Held, read: Read, tids: Collection[int], machine: Machine) -> Held:
    """The lock of a FILE: word, count, address of the owner's struct pthread."""
    data = read(found.address, 16)
    if data is None or len(data) < 16:  # noqa: PLR2004
        return found
    word, count, owner = struct.unpack("<IIQ", data)
    if word != _CONTENDED or not 0 < count < _MAX_COUNT:
        return found
    tid = _thread_id(owner, read, tids, machine)
    if tid is None:
        return found
    return Held(kind="stdio_lock", address=found.address, owner=tid, confidence=Level.HIGH)


def _rwlock(address: int, read: Read, tids: Collection[int]) -> Held | None:
    for word in _RWLOCK_WORDS:
        data = read(address - word, _RWLOCK_BYTES)
        if data is None or len(data) < _RWLOCK_BYTES:
            continue
        writer = int.from_bytes(data[_RWLOCK_WRITER : _RWLOCK_WRITER + 4], "little")
        if writer in tids:
            return Held(kind="rwlock", address=address - word, owner=writer, confidence=Level.HIGH)
    return None


def gil(address: int, read: Read, tids: Collection[int], machine: Machine) -> Held | None:
    """CPython's interpreter lock by the word that a waiter waits on; None when it does not fit."""
    for word in _COND_WORDS:
        start = address - word - _GIL_COND
        data = read(start, _GIL_COND)
        if data is None or len(data) < _GIL_COND:
            continue
        holder = int.from_bytes(data[_GIL_HOLDER : _GIL_HOLDER + 8], "little")
        locked = int.from_bytes(data[_GIL_LOCKED : _GIL_LOCKED + 4], "little")
        if locked != 1 or not holder:
            continue
        tid = _thread_of_state(holder, read, tids, machine)
        if tid is not None:
            return Held(kind="gil", address=start, owner=tid, confidence=Level.HIGH)
    return None


def _thread_of_state(address: int, read: Read, tids: Collection[int], machine: Machine) -> int | None:
    """Native thread of a PyThreadState: it has the address of the thread's struct pthread, which has the id."""
    data = read(address, _THREAD_STATE_BYTES)
    if data is None or len(data) < _THREAD_STATE_BYTES:
        return None
    found = set()
    words = struct.unpack(f"<{_THREAD_STATE_BYTES // 8}Q", data)
    for word in words:
        if word > 1 << 16:
            tid = _thread_id(word, read, tids, machine)
            if tid is not None:
                found.add(tid)
    # Since 3.11 its id stands next to it.
    if len(found) != 1:
        near = {second for first, second in zip(words, words[1:]) if second in tids and first > 1 << 16}  # noqa: B905, RUF007
        found = near if len(near) == 1 else set()
    return found.pop() if found else None


def _thread_id(address: int, read: Read, tids: Collection[int], machine: Machine) -> int | None:
    """Id of the thread whose struct pthread is at an address; it points to itself, too."""
    for offset in _TID_OFFSETS.get(machine.name, ()):
        own = read(address + 16, 8) if machine.name == "x86_64" else None
        if machine.name == "x86_64" and (own is None or int.from_bytes(own, "little") != address):
            continue
        tid = _word(read, address + offset)
        if tid in tids:
            return tid
    return None


def _parked(found: Held, read: Read) -> Held:
    """The lock that a thread of parking_lot is parked for: the key next to the word it sleeps on."""
    data = read(found.address - _PARKED_BEFORE, _PARKED_BYTES)
    if data is None:
        return found
    keys = set()
    for key in struct.unpack(f"<{len(data) // 8}Q", data[: len(data) // 8 * 8]):
        if key > 1 << 16:
            state = read(key, 1)
            if state and state[0] & _LOCKED_AND_PARKED == _LOCKED_AND_PARKED:
                keys.add(key)
    return Held(kind=found.kind, address=keys.pop()) if len(keys) == 1 else found


def _word(read: Read, address: int) -> int:
    data = read(address, 4)
    return int.from_bytes(data, "little") if data and len(data) == 4 else 0  # noqa: PLR2004


def holder_by_stack(
    held: Held, stacks: Mapping[int, bytes], registers: Mapping[int, Iterable[int | None]], waiting: Collection[int]
) -> tuple[int, bool] | None:
    """The one thread that does not wait for a lock and has its address on its stack; None when none or several have.

    Any reference to a lock has its address, not only the guard of its owner. Gives also whether it stands there as in
    a guard of Rust's std: {address of the lock, poisoned before: 0 or 1}; {address of the data, of the lock} for
    readers.
    """
    needle = held.address.to_bytes(8, "little")
    places = {tid: _places(stack, needle) for tid, stack in stacks.items() if tid not in waiting}
    found = [tid for tid, at in places.items() if at or held.address in registers.get(tid, ())]
    if len(found) != 1:
        return None
    stack = stacks[found[0]]
    return found[0], any(_in_guard(held, stack, at) for at in places[found[0]])


def _in_guard(held: Held, stack: bytes, at: int) -> bool:
    if held.kind in {"rust_mutex", "rust_rwlock"}:
        poison = stack[at + 8 : at + 9]
        if poison in (b"\0", b"\1"):
            return True
    if held.kind == "rust_rwlock" and at >= 8:  # noqa: PLR2004
        return 0 < int.from_bytes(stack[at - 8 : at], "little") - held.address <= _DATA_BYTES
    return False


def _places(stack: bytes, needle: bytes) -> list[int]:
    """Where a word stands in a copied stack whose first byte is at an aligned address."""
    found = []
    at = stack.find(needle)
    while at >= 0:
        if at % 8 == 0:
            found.append(at)
        at = stack.find(needle, at + 1)
    return found


def occurs(address: int, ranges: Iterable[tuple[int, int]], read: Read) -> bool | None:
    """Whether a word with this address is anywhere in these ranges; None when not all of them could be read."""
    needle = address.to_bytes(8, "little")
    for start, end in ranges:
        for at in range(start, end, _CHUNK):
            data = read(at, min(_CHUNK, end - at))
            if data is None:
                return None
            if _places(data, needle):
                return True
    return False
