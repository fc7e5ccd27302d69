"""snapshot_locks: what every sleeping thread of the watched processes waits for, and who can end the wait.

Reads: what snapshot_native_stacks reads, the memory of locks, /proc/locks, the descriptors of all processes for a pipe
or socket that somebody waits on, sockets by sock_diag. Pause of the target: 0. Privilege: as snapshot_native_stacks;
CAP_SYS_PTRACE for the descriptors of others. Cost: that of snapshot_native_stacks and 1 ms per process; 30 ms once when
holders of pipes or sockets are looked for on a host with 15,000 descriptors. Cannot see: owners of semaphores and
condition variables, which have none; the owner of a lock of Rust for sure (its word holds none); what a wait in epoll
is for.

Each wait is looked at twice, the second time after all first looks, and is called steady when it is the same and the
thread did not run in between: waits that are steady stood together at the moment between the looks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.collectors.releasers import SOCKET, Waiting, find_releasers
from freezeframe.agentd.collectors.snapshot_native_stacks import Looked, Looks, this_machine
from freezeframe.agentd.host import Host, procfs
from freezeframe.agentd.host.native import futexes
from freezeframe.agentd.host.native.machine import Machine
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import Confidence, Lock, Snapshot, Waiter

Level = Confidence.Level

_PIPE = re.compile(r"^pipe:\[\d+\]$")
# A thread that loops over a timed wait, as one that waits for the interpreter lock, is asked so often.
_TRIES = 8
_LOOP_S = 0.003
# Locks whose owner is looked for on other threads' stacks, per process.
_SEARCHES = 64
# Memory that is searched for one lock's address.
_SEARCH_BYTES = 128 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class _Process:
    """One process with its waits."""

    looked: Looked
    # Thread ids of its pid namespace to the host's.
    tids: Mapping[int, int]
    waiting: list[Waiting] = field(default_factory=list)


def collect(job: Job, host: Host, report: Report) -> None:
    """Look at every wait, then again; hand over Lock records."""
    machine = this_machine()
    begin = host.clock.monotonic()
    with ExitStack() as stack:
        looks = Looks(job, host, report, machine, stack, for_locks=True)
        processes = []
        for target in job.targets:
            looked = looks.look(target)
            if looked is not None:
                processes.append(_first(looked, machine))
        looks.say_what_was_missing()
        waits_of = [(process.looked.target.pid, waiting) for process in processes for waiting in process.waiting]
        find_releasers(waits_of, host, report)
        if job.window_ms and processes:
            report.doing("waiting for the second look")
            host.clock.sleep(max(0.0, begin + job.window_ms / 1000.0 - host.clock.monotonic()))
        for process in processes:
            report.doing(f"looking again at the waits of {process.looked.target.pid}")
            _second(process, machine, host)
        since_ms = (host.clock.monotonic() - begin) * 1000.0
        doing = _doings(processes, host)
        for process in processes:
            report.part(Snapshot(locks=_locks(process, doing, since_ms)))
            report.done(process.looked.target.pid)


def _first(looked: Looked, machine: Machine) -> _Process:
    pid, directory = looked.target.pid, looked.directory
    tids = _namespace_tids(directory, [stack.tid for stack in looked.stacks])
    process = _Process(looked=looked, tids=tids)
    for stack in looked.stacks:
        wait = looked.waits.get(stack.tid)
        if wait is None or stack.copy is None:
            continue
        place = stack.copy.task.registers[machine.stack_pointer] or 0, stack.counters[0] if stack.counters else 0
        waiting = Waiting(tid=stack.tid, wait=wait, place=place, switches=stack.copy.task.switches, kind="")
        if wait.call.startswith("futex"):
            functions = [frame.function for frame in stack.frames]
            held = futexes.classify(functions, wait, looked.read, tids.keys(), machine)
            waiting.kind, waiting.address, waiting.confidence = held.kind, held.address, held.confidence
            waiting.owner_tid = tids.get(held.owner) if held.owner is not None else None
            waiting.ended_owner = held.ended_owner
            if waiting.owner_tid is None:
                waiting.confidence = Level.UNSPECIFIED
        else:
            _name(waiting, directory)
        if waiting.kind:
            process.waiting.append(waiting)
    _search_owners(process)
    _children(process, pid)
    return process


def _search_owners(process: _Process) -> None:
    """Look for the owners of locks that do not name them, on the other threads' stacks.

    A reference on a stack is LOW. It is MEDIUM when it stands as in a guard, is on no other stack and nowhere else in
    the process's memory, and the lock is no static one, whose address needs not be anywhere.
    """
    looked = process.looked
    memory = {stack.tid: stack.copy.stack for stack in looked.stacks if stack.copy is not None}
    registers = {stack.tid: stack.copy.task.registers for stack in looked.stacks if stack.copy is not None}
    if len(memory) != len(looked.stacks):
        return  # of a thread that ran nothing is known: it may be the owner
    groups: dict[int, list[Waiting]] = {}
    for waiting in process.waiting:
        if waiting.kind in futexes.UNNAMED_OWNER:
            groups.setdefault(waiting.address, []).append(waiting)
    endless = {waiting.tid for waiting in process.waiting if waiting.wait.endless}
    for address, group in list(groups.items())[:_SEARCHES]:
        held = futexes.Held(kind=group[0].kind, address=address)
        found = futexes.holder_by_stack(held, memory, registers, {waiting.tid for waiting in group})
        if found is None:
            continue
        owner, guarded = found
        # The search through all memory is worth it only where it may complete a cycle.
        known = {owner, *(waiting.tid for waiting in group)}
        sure = guarded and owner in endless and _nowhere_else(looked, address, known)
        for waiting in group:
            waiting.owner_tid, waiting.confidence = owner, Level.MEDIUM if sure else Level.LOW


def _nowhere_else(looked: Looked, address: int, known: Collection[int]) -> bool:
    """Whether no memory but the stacks of the threads that are known has an address: a guard may be on the heap."""
    space = looked.space
    own = space.mapping_at(address)
    if own is None or own.inode or any(own in module.mappings for module in space.modules):
        return False
    # Of a stack what is in use; nothing of those that are known.
    begin = {
        mapping.start: stack.copy.base & -8 if stack.tid not in known else mapping.end
        for stack in looked.stacks
        if stack.copy is not None and (mapping := space.mapping_at(stack.copy.base)) is not None
    }
    ranges = [
        (begin.get(each.start, each.start), each.end)
        for each in space.mappings
        if each.writable and not each.name.startswith((b"/dev/", b"[vv"))
    ]
    if sum(end - start for start, end in ranges) > _SEARCH_BYTES or not _static_free(looked, address):
        return False
    return futexes.occurs(address, ranges, looked.read) is False


def _static_free(looked: Looked, address: int) -> bool:
    """Whether a lock lies in no file's own data: .bss is mapped right behind it, without a name."""
    before = [module for module in looked.space.modules if module.end <= address]
    behind = looked.space.mapping_at(address)
    return behind is not None and not (before and before[-1].end == behind.start and not behind.name)


def _name(waiting: Waiting, directory: str) -> None:
    """Tell what a wait that is no futex is for, as far as the call alone tells."""
    wait = waiting.wait
    target = wait.target
    single = wait.polled[0] if len(wait.polled) == 1 else None
    if single is not None:
        target = single[1]
    if wait.child is not None:
        waiting.kind = "child"
        waiting.object = "any child" if wait.child == -1 else f"child {wait.child}"
    elif wait.call == "flock" or wait.operation.startswith("F_"):
        waiting.kind = "flock" if wait.call == "flock" else "posix"
        waiting.object = target
    elif _PIPE.match(target):
        waiting.kind, waiting.object = "pipe", target
    elif SOCKET.match(target):
        waiting.kind, waiting.object = "socket", target
    elif target.startswith("anon_inode:[eventfd") and wait.call in {"read", "write", "poll", "ppoll"}:
        waiting.kind, waiting.object = "eventfd", target
    elif _state(f"{directory}/task/{waiting.tid}") == "D":
        waiting.kind = "io"
        waiting.object = target or _kernel_function(f"{directory}/task/{waiting.tid}")


def _state(thread: str) -> str:
    try:
        return procfs.stat(thread).state
    except procfs.ProcfsError:
        return ""


def _kernel_function(thread: str) -> str:
    try:
        return procfs.wchan(thread)
    except procfs.ProcfsError:
        return ""


def _namespace_tids(directory: str, tids: Iterable[int]) -> dict[int, int]:
    """Thread ids as the process itself knows them, to the host's."""
    try:
        if len(procfs.status(directory).namespace_pids) <= 1:
            return {tid: tid for tid in tids}
    except procfs.ProcfsError:
        return {}
    found = {}
    for tid in tids:
        try:
            found[procfs.status(f"{directory}/task/{tid}").namespace_pids[-1]] = tid
        except (procfs.ProcfsError, IndexError):
            continue  # ended
    return found


def _children(process: _Process, pid: int) -> None:
    for waiting in process.waiting:
        if waiting.kind != "child":
            continue
        found: set[int] = set()
        # The children of every thread: any of them may have forked.
        for tid in process.tids.values():
            try:
                text = procfs.read_file(f"{process.looked.directory}/task/{tid}/children", 1 << 20)
            except procfs.ProcfsError:
                found.clear()  # a kernel without it
                break
            found |= {int(number) for number in text.split() if number.isdigit()}
        wanted = waiting.wait.child
        if wanted is not None and wanted != -1:
            # The number is the process's own; that of a namespace is not looked up.
            found = {wanted} & found
        waiting.releasers = frozenset(found) or None
        # A signal may be what ends a child, or the wait for it.
        waiting.confidence = Level.MEDIUM if found else Level.UNSPECIFIED
        waiting.owner_pid = next(iter(found)) if len(found) == 1 and found != {pid} else None


def _second(process: _Process, machine: Machine, host: Host) -> None:
    """Call the waits steady that are still the same, their threads not having run."""
    directory = process.looked.directory
    for waiting in process.waiting:
        thread = f"{directory}/task/{waiting.tid}"
        loops = waiting.kind == "gil"
        for attempt in range(_TRIES if loops else 1):
            if attempt:
                host.clock.sleep(_LOOP_S)
            if _same(waiting, thread, machine, loops=loops):
                waiting.steady = _still_owned(process, waiting, machine)
                break


def _same(waiting: Waiting, thread: str, machine: Machine, *, loops: bool) -> bool:
    try:
        call = procfs.syscall(thread, machine.name)
        status = procfs.status(thread)
    except procfs.ProcfsError:
        return False
    if (call.name, call.stack_pointer, call.program_counter) != (waiting.wait.call, *waiting.place):
        return False
    return loops or status.voluntary_switches + status.involuntary_switches == waiting.switches


def _still_owned(process: _Process, waiting: Waiting, machine: Machine) -> bool:
    """Whether a lock that names its owner names the same one again."""
    if waiting.owner_tid is None or waiting.kind in futexes.UNNAMED_OWNER or not waiting.address:
        return True
    names = ["take_gil"] if waiting.kind == "gil" else [waiting.kind]
    stack = next(stack for stack in process.looked.stacks if stack.tid == waiting.tid)
    functions = names if waiting.kind == "gil" else [frame.function for frame in stack.frames]
    held = futexes.classify(functions, waiting.wait, process.looked.read, process.tids.keys(), machine)
    return held.owner is not None and process.tids.get(held.owner) == waiting.owner_tid


def _doings(processes: list[_Process], host: Host) -> dict[tuple[int, int], str]:
    """What threads do, by pid and tid; a process alone by tid 0."""
    found: dict[tuple[int, int], str] = {}
    for process in processes:
        pid = process.looked.target.pid
        for tid, wait in process.looked.waits.items():
            found[pid, tid] = wait.text()
            if tid == pid:
                found[pid, 0] = wait.text()
    owners = {w.owner_pid for process in processes for w in process.waiting if w.owner_pid is not None}
    for owner in owners | {process.looked.target.pid for process in processes}:
        if _state(host.proc(owner)) in {"T", "t"}:
            found[owner, 0] = "stopped"
    return found


def _locks(process: _Process, doing: Mapping[tuple[int, int], str], since_ms: float) -> tuple[Lock, ...]:
    pid = process.looked.target.pid
    found: dict[tuple[str, int, str], Lock] = {}
    for waiting in process.waiting:
        key = waiting.kind, waiting.address, waiting.object
        waiter = Waiter(
            tid=waiting.tid,
            since_ms=since_ms if waiting.steady else None,
            operation=f"{waiting.wait.call} {waiting.wait.operation}".strip(),
            # Whoever waits for the interpreter lock does it again and again, for a few milliseconds each.
            endless=waiting.wait.endless or waiting.kind == "gil",
            steady=waiting.steady,
        )
        known = found.get(key)
        if known is not None:
            found[key] = replace(known, waiters=(*known.waiters, waiter))
            continue
        owner = (pid, waiting.owner_tid) if waiting.owner_tid is not None else (waiting.owner_pid or 0, 0)
        found[key] = Lock(
            pid=pid,
            address=f"{waiting.address:#x}" if waiting.address else "",
            kind=waiting.kind,
            owner_tid=waiting.owner_tid,
            waiters=(waiter,),
            object=waiting.object,
            owner_confidence=waiting.confidence,
            owner_pid=waiting.owner_pid,
            releaser_pids=tuple(sorted(waiting.releasers or ())),
            owner_doing=_doing(waiting, owner, doing),
        )
    return tuple(found.values())


def _doing(waiting: Waiting, owner: tuple[int, int], doing: Mapping[tuple[int, int], str]) -> str:
    if waiting.ended_owner:
        return f"thread {waiting.ended_owner} has it and has ended"
    whole = doing.get((owner[0], 0), "")
    return whole if whole == "stopped" else doing.get(owner, "")


SNAPSHOT_LOCKS = Collector(
    name="snapshot_locks", tier=Tier.MEMORY, collect=collect, patience_ms=2000.0, wants=lambda _target: True
)
