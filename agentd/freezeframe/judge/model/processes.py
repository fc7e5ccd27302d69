"""Processes and their threads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """One thread at the first look, with what moved until the second."""

    # Thread id in the host's pid namespace.
    tid: int = 0
    # The 15-byte name, escaped.
    name: str = ""
    # State letter.
    state: str = ""
    # Kernel function it sleeps in; empty when it runs or this is hidden.
    wchan: str = ""
    # System call it is in, by name ("futex") or number; "running" when in none; empty when not readable.
    syscall: str = ""
    # The call's six arguments as hexadecimal numbers.
    syscall_arguments: tuple[str, ...] = ()
    # Kernel stack, innermost first; empty without CAP_SYS_ADMIN.
    kernel_stack: tuple[str, ...] = ()
    # CPU time since start, milliseconds.
    cpu_ms: float = 0.0
    # CPU time between the looks, milliseconds; absent with one look.
    cpu_ms_delta: float | None = None
    # Voluntary context switches between the looks.
    voluntary_switches_delta: int | None = None
    # Involuntary context switches between the looks.
    involuntary_switches_delta: int | None = None
    # State letter at the second look; empty with one look.
    state_after: str = ""
    # Time between the looks in which it was ready to run and had no CPU, milliseconds; absent with one look.
    run_delay_ms_delta: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process that takes part in serving, or that talks to one that does."""

    class Role(Enum):
        """What a process is in the serving path; found, not configured."""

        UNSPECIFIED = 0
        OTHER = 1
        CLIENT = 2
        PROXY = 3
        ROUTER = 4
        ENGINE_HTTP = 5
        SCHEDULER = 6
        DETOKENIZER = 7
        DP_CONTROLLER = 8
        TOKENIZER_WORKER = 9
        WORKER = 10
        LAUNCHER = 11

    # Process id in the host's pid namespace.
    pid: int = 0
    # Its role.
    role: Role = Role.UNSPECIFIED
    # What ps shows: the title set by setproctitle, else the command, escaped.
    title: str = ""
    # Path of the executable as the kernel names it; empty when it could not be read.
    exe: str = ""
    # State letter of the main thread: R S D T t Z X I.
    state: str = ""
    # systemd unit from the cgroup path; empty when none.
    unit: str = ""
    # Container id from the cgroup path; empty when none.
    container: str = ""
    # Threads, main thread first.
    threads: tuple[Thread, ...] = ()
    # Parent's pid.
    parent_pid: int = 0
    # Start time in clock ticks since boot: with the pid it tells processes apart.
    start_ticks: float = 0.0
    # Age at the capture, milliseconds.
    age_ms: float = 0.0
    # The 15-byte name of the main thread, escaped.
    comm: str = ""
    # Arguments kept by the allow-list: argv[0] and flags without secret values.
    argv: tuple[str, ...] = ()
    # Where argv came from: "own", "parent", "unit"; empty when there is none.
    argv_source: str = ""
    # Pid inside the innermost pid namespace, when that is not the host's.
    container_pid: int | None = None
    # Real user id.
    uid: int = 0
    # Resident memory, bytes.
    rss_bytes: float = 0.0
    # Number of threads, also when not all are listed.
    thread_count: int = 0
    # CPU time since start, milliseconds.
    cpu_ms: float = 0.0
    # CPU time used between the two looks, milliseconds; absent with one look.
    cpu_ms_delta: float | None = None
    # cgroup path (v2, else that of the cpu controller), escaped.
    cgroup: str = ""
    # True when the process's cgroup is frozen.
    frozen: bool = False
    # True when a read of its memory was stuck: memory was not looked at.
    memory_blocked: bool = False
    # Python version "3.11" when the process runs CPython; empty otherwise.
    python: str = ""
    # Leader of the engine it belongs to (the HTTP process); 0 when it belongs to none.
    engine_pid: int = 0
    # Disaggregation role: "prefill", "decode" or empty.
    disaggregation: str = ""
    # Rank labels from the title, such as "TP0 DP1"; empty when none.
    rank: str = ""
    # TCP ports it listens on.
    listening_ports: tuple[int, ...] = ()
    # What decided the role, for people: "title sglang::router", "listens where the router connects".
    role_reason: str = ""
    # Product behind the role: "sglang", "vllm", "sglang-router", "smg", "nginx"; empty when unknown.
    product: str = ""
    # Inode of its network namespace; 0 when unknown.
    netns: float = 0.0
    # Open file descriptors; absent when they could not be counted.
    fd_count: int | None = None
    # Soft limit of open files; absent when unknown.
    fd_limit: float | None = None
    # Pid of the tracer, 0 when none.
    tracer_pid: int = 0
    # Set when the process ended during the capture.
    exited: bool = False
    # Kubernetes pod, namespace and container name, or the container's name; empty when unknown.
    pod: str = ""
    # Kubernetes namespace.
    namespace: str = ""
    # Name of the container.
    container_name: str = ""
    # Runtime the program was built with: "go", "node", "rust", "python"; empty when unknown.
    runtime: str = ""
