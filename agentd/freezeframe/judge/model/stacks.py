"""Python, asyncio and native stacks, and locks."""

from __future__ import annotations

from dataclasses import dataclass

from freezeframe.judge.model.verdict import Confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of a Python or asyncio stack."""

    # Function or coroutine.
    function: str = ""
    # Source file.
    file: str = ""
    # Line; 0 when unknown.
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonThread:
    """One Python thread and its stack, innermost frame first."""

    # Process.
    pid: int = 0
    # Thread id in the host's pid namespace; 0 when unknown.
    tid: int = 0
    # threading's name.
    name: str = ""
    # Stack at the first look.
    frames: tuple[Frame, ...] = ()
    # True when it was running or waiting for the interpreter lock, not idle.
    active: bool = False
    # True when it held the interpreter lock.
    owns_gil: bool = False
    # True when both looks show the same stack; absent with one look.
    same_at_second_look: bool | None = None
    # Stack at the second look when it differs.
    frames_after: tuple[Frame, ...] = ()
    # CPU time between the looks, milliseconds; absent when unknown.
    cpu_ms_delta: float | None = None
    # Who read the stack: "walker" (the agent itself), "py-spy", "both" (they agree); empty in files of older writers.
    source: str = ""
    # Why the stack may be wrong, such as what the other reader shows instead; empty when nothing speaks against it.
    doubt: str = ""
    # True when it waits for the interpreter lock.
    waits_for_gil: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeFrame:
    """One frame of a native stack."""

    # Function, demangled; empty when unknown.
    function: str = ""
    # File name of the module.
    module: str = ""
    # Offset in the module, bytes.
    offset: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeThread:
    """One native thread and its stack, innermost frame first."""

    # Process.
    pid: int = 0
    # Thread id.
    tid: int = 0
    # The 15-byte name.
    name: str = ""
    # User frames.
    frames: tuple[NativeFrame, ...] = ()
    # Kernel frames.
    kernel_frames: tuple[str, ...] = ()
    # Why the stack may be wrong or short; empty when it is whole.
    doubt: str = ""
    # What it waits in: "futex wait at 0x7f5c0010, no timeout", "read fd 5 (pipe:[4711])"; empty when it runs.
    wait: str = ""
    # True when both looks show the same stack; absent with one look.
    same_at_second_look: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEdge:
    """One task that another one waits for."""

    # Address of the task that is waited for, hexadecimal.
    address: str = ""
    # How: "await", "gather", "wait", "wait_for", "shield", "TaskGroup".
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncioTask:
    """One asyncio task and its await chain, outermost coroutine first."""

    # Process.
    pid: int = 0
    # Task name.
    name: str = ""
    # "running", "ready", "waiting", "not started" or "finished".
    state: str = ""
    # Await chain.
    frames: tuple[Frame, ...] = ()
    # Type of the awaited object.
    awaits: str = ""
    # Time since the agent first saw it, milliseconds (at least).
    first_seen_age_ms: float | None = None
    # Request that it serves, as "requests[N]".
    request_ref: str = ""
    # Address of the task object, hexadecimal.
    address: str = ""
    # Address of the task that awaits this one, hexadecimal; empty when none.
    awaited_by: str = ""
    # Tasks that it waits for.
    waits_for: tuple[TaskEdge, ...] = ()
    # State of the awaited future: "pending", "cancelled", "finished"; empty when it is none.
    awaits_state: str = ""
    # Address of the awaited object, hexadecimal; empty when none.
    awaits_address: str = ""
    # Why the chain may be wrong; empty when it was checked and is one that the task had.
    doubt: str = ""
    # Thread of its event loop in the host's pid namespace; 0 when unknown.
    tid: int = 0
    # Address of its event loop, hexadecimal.
    loop: str = ""
    # Address of its outermost coroutine, hexadecimal.
    coroutine: str = ""
    # Descriptor of the connection that it serves; absent when none was found.
    fd: int | None = None
    # Address at the other end of that connection, as the server's framework has it.
    peer_address: str = ""
    # Method of the request that it serves; empty when none was found.
    method: str = ""
    # Path of that request without query string.
    path: str = ""
    # Id of that request from its headers.
    request_id: str = ""
    # Id that the engine itself gave, from a local variable of the chain.
    engine_request_id: str = ""
    # True when both looks show the same chain; absent with one look.
    same_at_second_look: bool | None = None
    # Chain at the second look when it differs.
    frames_after: tuple[Frame, ...] = ()
    # Address of the asyncio.Lock that it waits for, hexadecimal; empty when none.
    waits_for_lock: str = ""
    # Addresses of the asyncio.Locks that it has: those in whose `async with` block it is.
    holds_locks: tuple[str, ...] = ()
    # True when it is under a timeout that lets it go.
    waits_with_timeout: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """One thread that waits for a lock."""

    # Thread id.
    tid: int = 0
    # Time it has waited, milliseconds (at least); absent when unknown.
    since_ms: float | None = None
    # System call, and what of it: "futex wait", "read", "wait4".
    operation: str = ""
    # True when it has no timeout: it ends only when what it waits for comes.
    endless: bool = False
    # True when it was seen twice in this very wait and did not run in between.
    steady: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """One lock or wait address and who waits for it."""

    # Process.
    pid: int = 0
    # Address, hexadecimal.
    address: str = ""
    # "pthread_mutex", "parking_lot_mutex", "gil", "condvar", "pipe", "socket", "flock", "child", "futex" (unknown) ...
    kind: str = ""
    # Owner when it can be known.
    owner_tid: int | None = None
    # Threads that wait.
    waiters: tuple[Waiter, ...] = ()
    # What it is where it is at no address: "pipe:[4711]", "child 812".
    object: str = ""
    # How sure owner or releasers are: HIGH where lock or kernel name them; MEDIUM where another thread's stack
    # does, or some process's descriptors are hidden.
    owner_confidence: Confidence.Level = Confidence.Level.UNSPECIFIED
    # Process of the owner, when it is another one.
    owner_pid: int | None = None
    # Processes any thread of which can end the wait; all of them, or none when they are not all known.
    releaser_pids: tuple[int, ...] = ()
    # What the owner, or who could end the wait, does: "stopped", "read fd 3 (pipe:[4712])"; empty when unknown.
    owner_doing: str = ""
