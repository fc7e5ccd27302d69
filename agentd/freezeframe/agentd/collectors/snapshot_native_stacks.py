"""snapshot_native_stacks: user and kernel frames of every thread of the watched processes, with what it waits in.

Reads: registers from a BPF iterator over tasks, 64 KiB of each stack by process_vm_readv, ELF files of the target
through /proc/PID/map_files, /proc/PID/task/TID/{syscall,stack}. Unwinds with libdw, from the copies. Pause of the
target: 0 (no ptrace, no signal), whatever state its threads are in. Privilege: CAP_BPF and CAP_PERFMON for registers,
CAP_SYS_PTRACE for memory, CAP_SYS_ADMIN for map_files and kernel stacks. Cost: 10 ms for a router of 5 threads, 0.2 ms
per further thread; the first look at a file sorts its symbols (half a microsecond each) and keeps them in the agent's
state. Cannot see: what is suspended on the heap (tokio and asyncio tasks); frames of a thread that is running, but for
the place where it last entered the kernel. With allow_seize such a thread is stopped once, for some 100 microseconds.

Without BPF only stack pointer and program counter are known and frames may be missing; without libdw only the innermost
frame is told; without symbols the module and the offset in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from freezeframe.agentd.collectors.contract import Collector, Report, Tier, UnavailableError
from freezeframe.agentd.collectors.readable import may_be_read
from freezeframe.agentd.host import Host, kernel_stacks, procfs, waits
from freezeframe.agentd.host.native import libdw, seize, task_iterator
from freezeframe.agentd.host.native import look as looking
from freezeframe.agentd.host.native.files import AddressSpace, Files
from freezeframe.agentd.host.native.futexes import FRAMES
from freezeframe.agentd.host.native.machine import MACHINES, Machine
from freezeframe.agentd.host.native.symbols import SymbolCache
from freezeframe.agentd.host.target_memory import MemoryGoneError, TargetMemory, TargetMemoryError
from freezeframe.agentd.host.waits import Read, Wait
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import NativeThread, Snapshot

# Bytes read of one target: 2,000 stacks.
_MEMORY_BYTES = 256 * 1024 * 1024
_SYMBOLS_FOLDER = "symbols"
# Share of the job's time after which no further target's memory is read.
_LIMIT_SHARE = 0.8
_NO_LIBDW = "libdw is not installed: the innermost frame only"


def this_machine() -> Machine:
    """Give the machine that freezeframe runs on. Raises UnavailableError where its registers are not known."""
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        raise UnavailableError(f"no register table for {os.uname().machine}", "x86_64 and aarch64 are supported")
    return machine


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over NativeThread records: the first look at once, again after the window with what changed."""
    machine = this_machine()
    begin = host.clock.monotonic()
    with ExitStack() as stack:
        looks = Looks(job, host, report, machine, stack)
        first: dict[int, tuple[NativeThread, ...]] = {}
        for target in job.targets:
            threads = looks.threads(target)
            if threads is None:
                continue
            report.part(Snapshot(native_threads=threads))
            if job.window_ms:
                first[target.pid] = threads
            else:
                report.done(target.pid)
        looks.say_what_was_missing()
        if not first:
            return
        report.doing("waiting for the second look")
        host.clock.sleep(max(0.0, begin + job.window_ms / 1000.0 - host.clock.monotonic()))
        for target in job.targets:
            if target.pid in first:
                threads = looks.threads(target)
                if threads is not None:
                    report.part(Snapshot(native_threads=_compare(first[target.pid], threads)))
                    report.done(target.pid)


def _compare(first: tuple[NativeThread, ...], second: tuple[NativeThread, ...]) -> tuple[NativeThread, ...]:
    """The first look's records with whether the second one shows the same stack."""
    after = {thread.tid: thread for thread in second}
    return tuple(
        replace(thread, same_at_second_look=thread.tid in after and after[thread.tid].frames == thread.frames)
        for thread in first
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """One process as it was looked at."""

    target: Target
    directory: str
    memory: TargetMemory
    stacks: tuple[looking.Stack, ...]
    # What each thread waits in, by tid; those that are in no call are left out.
    waits: Mapping[int, Wait]
    read: Read
    space: AddressSpace


class Looks:
    """Looks at processes, one after the other; what they share is opened once."""

    def __init__(
        self,
        job: Job,
        host: Host,
        report: Report,
        machine: Machine,
        closing: ExitStack,
        *,
        for_locks: bool = False,
    ) -> None:
        """What is opened is closed with `closing`; `for_locks`: the innermost frames of threads in futex calls only."""
        self._for_locks = for_locks
        self._job = job
        self._host = host
        self._report = report
        self._machine = machine
        self._until = host.clock.monotonic() + job.deadline_ms / 1000.0 * _LIMIT_SHARE
        self._threads_left = job.caps.threads
        self._looking_at = 0
        folder = f"{host.state_dir}/{_SYMBOLS_FOLDER}" if host.state_dir else None
        self._files = Files(SymbolCache(folder, self._say_building))
        self._kernel_stacks = kernel_stacks.KernelStacks(host)
        self._kernel_stacks_denied = 0
        self._source: task_iterator.TaskIterator | looking.FewRegisters
        self._missing: list[tuple[str, str]] = []
        try:
            iterator = task_iterator.load(machine)
            closing.callback(iterator.close)
            self._source = iterator
        except task_iterator.IteratorError as error:
            self._missing.append((f"frames may be missing: {error}", error.hint))
            self._source = looking.FewRegisters(machine, host.proc)
        self._libdw = True
        try:
            libdw.load()
        except libdw.LibdwError as error:
            self._libdw = False
            self._missing.append((f"{_NO_LIBDW} ({error})", "apt install libdw1, or: dnf install elfutils-libs"))

    def _say_building(self) -> None:
        self._report.doing(f"sorting the symbols of a file of {self._looking_at}")

    def say_what_was_missing(self) -> None:
        """Tell once what holds for every target."""
        for detail, hint in self._missing:
            self._report.partial(detail, hint)
        self._missing.clear()
        if self._kernel_stacks_denied:
            self._report.partial(
                f"kernel stacks of {self._kernel_stacks_denied} threads are hidden", kernel_stacks.HINT
            )
            self._kernel_stacks_denied = 0

    def threads(self, target: Target) -> tuple[NativeThread, ...] | None:
        """Look at one target; None when it could not be looked at, which was said."""
        looked = self.look(target)
        if looked is None:
            return None
        return tuple(self._thread(looked, stack) for stack in looked.stacks)

    def look(self, target: Target) -> Looked | None:
        """Look at the stacks of one target; None when it could not be looked at, which was said."""
        directory = self._host.proc(target.pid)
        if not may_be_read(target, self._host, self._report) or self._is_zombie(target, directory):
            return None
        self._report.doing(f"reading the stacks of {target.pid}")
        self._looking_at = target.pid
        memory_of = TargetMemory(
            target.pid, max_bytes=_MEMORY_BYTES, until=self._until, monotonic=self._host.clock.monotonic
        )
        read = waits.reader(memory_of.read_many)
        try:
            space = AddressSpace(directory, self._files, read)
            stacks = self._stacks(target.pid, space, memory_of)
        except (procfs.GoneError, MemoryGoneError):
            self._report.done(target.pid)  # ended: there are no threads any more
            return None
        except (procfs.ProcfsError, TargetMemoryError, task_iterator.IteratorError, libdw.LibdwError) as error:
            self._report.missed(target.pid, str(error))
            return None
        if space.unreadable:
            named = ", ".join(f"{name}: {why}" for name, why in list(space.unreadable.items())[:3])
            self._report.missed(target.pid, f"files that its code lies in could not be read: {named}")
        self._threads_left -= len(stacks)
        found = {}
        for stack in stacks:
            wait = self._wait(directory, stack, read)
            if wait is not None:
                found[stack.tid] = wait
        return Looked(
            target=target,
            directory=directory,
            memory=memory_of,
            stacks=tuple(stacks),
            waits=found,
            read=read,
            space=space,
        )

    def _is_zombie(self, target: Target, directory: str) -> bool:
        try:
            ended = procfs.stat(directory).state in {"Z", "X"}
        except procfs.ProcfsError:
            ended = True
        if ended:
            self._report.done(target.pid)  # there are no threads any more
        return ended

    def _stacks(self, pid: int, space: AddressSpace, memory_of: TargetMemory) -> list[looking.Stack]:
        caps = self._job.caps
        if not self._libdw:
            copies, _ = looking.take(
                pid, self._machine, self._source, space, memory_of, threads=max(0, self._threads_left)
            )
            return looking.bare(copies, self._machine, space, _NO_LIBDW)
        stacks = looking.stacks(
            pid,
            self._machine,
            self._source,
            space,
            memory_of,
            frames=min(caps.frames, FRAMES) if self._for_locks else caps.frames,
            threads=max(0, self._threads_left),
            seize=seize.registers if self._job.allow_seize and not self._for_locks else None,
            wanted=self._in_futex if self._for_locks else lambda _copy: True,
        )
        count = len(procfs.tids(self._host.proc(pid)))
        if len(stacks) < count and count > self._threads_left:
            self._report.partial(
                f"truncated: of {count} threads of pid {pid} {len(stacks)} were looked at",
                "the cap counts the threads of all watched processes; watch fewer with --pid",
            )
        return stacks

    def _wait(self, directory: str, stack: looking.Stack, read: waits.Read) -> waits.Wait | None:
        try:
            call = procfs.syscall(f"{directory}/task/{stack.tid}", self._machine.name)
        except procfs.ProcfsError:
            return None  # ended, or not ours to see
        if call.number < 0 and stack.copy is not None:
            # On its way out of a call, and waiting for a CPU: what it was in when its stack was copied.
            call = self._copied_call(stack.copy)
        # Another call than the one that the stack ends in.
        elif stack.counters and stack.counters[0] != call.program_counter:
            return None
        return waits.decode(call, directory, read, self._host.clock)

    def _copied_call(self, copy: looking.Copy) -> procfs.Syscall:
        words = [copy.task.registers[at] for at in self._machine.call]
        known = [word for word in words if word is not None]
        if not known or len(known) != len(words):
            return procfs.Syscall(name="running", number=-1, arguments=())
        return procfs.syscall_of(known[0], known[1:], self._machine.name)

    def _in_futex(self, copy: looking.Copy) -> bool:
        # Where registers do not tell the call, any of them may be in one.
        return not self._machine.call or self._copied_call(copy).name.startswith("futex")

    def _thread(self, looked: Looked, stack: looking.Stack) -> NativeThread:
        thread = f"{looked.directory}/task/{stack.tid}"
        name = ""
        kernel: tuple[str, ...] = ()
        try:
            stat = procfs.stat(thread)
            name = stat.comm
            if stat.state != "R":
                kernel = self._kernel_stacks.read(looked.target.pid, stack.tid)
        except procfs.DeniedError:
            self._kernel_stacks_denied += 1
        except procfs.ProcfsError:
            pass  # ended since, or a kernel without it
        wait = looked.waits.get(stack.tid)
        return NativeThread(
            pid=looked.target.pid,
            tid=stack.tid,
            name=name,
            frames=stack.frames,
            kernel_frames=kernel,
            doubt=stack.doubt,
            wait=wait.text() if wait is not None else "",
        )


SNAPSHOT_NATIVE_STACKS = Collector(
    name="snapshot_native_stacks", tier=Tier.MEMORY, collect=collect, patience_ms=2000.0, wants=lambda _target: True
)
