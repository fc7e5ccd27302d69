"""Python stacks of all threads of a process by our own walker, each with what the kernel says of its thread meanwhile.

A thread that did not run between two reads of its switch counters, and does not run at either, cannot have changed its
stack: then it is sound. A stack of a running thread is read as it comes, three times at most, and told with a doubt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from freezeframe.agentd.host import procfs
from freezeframe.agentd.host.cpython.frames import Codes
from freezeframe.agentd.host.cpython.interpreter import Interpreter
from freezeframe.agentd.host.cpython.threads import Gil, PythonState, StackFrame, StackWalker, gil_of, threads_of
from freezeframe.agentd.host.target_memory import UnreadableMemoryError

_TRIES = 3
_RUNNING = "its thread ran while it was read"
_UNKNOWN_THREAD = "which thread it is of is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What the kernel says of a thread at one moment."""

    running: bool
    # Times it was switched out.
    switches: int
    # System call that it is in, and its first argument.
    call: str
    argument: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedThread:
    """One thread."""

    # In the host's pid namespace; 0 when unknown.
    tid: int
    name: str
    # Innermost first.
    frames: tuple[StackFrame, ...]
    holds_gil: bool
    waits_for_gil: bool
    running: bool
    # Why the stack may be wrong; empty when it is sound.
    doubt: str
    # Switches when it was read; absent when unknown.
    switches: int | None


def walk_threads(
    interpreter: Interpreter, directory: str, machine: str, tids: Mapping[int, int] | None, *, frames: int, threads: int
) -> tuple[WalkedThread, ...]:
    """Walk the threads of a process ("/proc/4711"). Raises TargetMemoryError.

    `tids` are the host's thread ids by those of the target's namespace, None when they are the same.
    """
    walker = StackWalker(interpreter, Codes(interpreter.objects))
    gil = gil_of(interpreter)
    return tuple(
        walk_thread(walker, state, gil, directory, machine, tids, frames=frames)
        for state in threads_of(interpreter)[:threads]
    )


def activity(directory: str, machine: str) -> Activity | None:
    """Read what a thread ("/proc/4711/task/4712") does; None when it has ended or may not be seen."""
    try:
        status = procfs.status(directory)
        running = procfs.stat(directory).state == "R"
        call = procfs.syscall(directory, machine)
    except procfs.ProcfsError:
        return None
    argument = int(call.arguments[0], 16) if call.arguments else 0
    switches = status.voluntary_switches + status.involuntary_switches
    # In no system call and not asleep: it runs, or is about to.
    return Activity(running=running or call.name == "running", switches=switches, call=call.name, argument=argument)


def walk_thread(
    walker: StackWalker,
    state: PythonState,
    gil: Gil,
    directory: str,
    machine: str,
    tids: Mapping[int, int] | None,
    *,
    frames: int,
) -> WalkedThread:
    """Walk one thread; arguments as those of `walk_threads`. Raises TargetMemoryError for what ends every read."""
    tid = state.native if tids is None else tids.get(state.native, 0)
    thread = f"{directory}/task/{tid}" if tid else ""
    found: tuple[StackFrame, ...] = ()
    doubt = ""
    before = after = activity(thread, machine) if thread else None
    for _ in range(_TRIES):
        before = after
        try:
            found = tuple(walker.walk(state, frames))
            doubt = "" if thread else _UNKNOWN_THREAD
        except UnreadableMemoryError as error:
            doubt = f"{_RUNNING}: {error}"
        after = activity(thread, machine) if thread else None
        if before is not None and after is not None and before.switches == after.switches and not after.running:
            break
        doubt = doubt or _RUNNING
    else:
        doubt = doubt or _RUNNING
    return WalkedThread(
        tid=tid,
        name=state.name,
        frames=found,
        holds_gil=state.holds_gil,
        waits_for_gil=bool(after and after.call == "futex" and gil.start <= after.argument < gil.end),
        running=bool(after and after.running),
        doubt=doubt,
        switches=after.switches if after else None,
    )
