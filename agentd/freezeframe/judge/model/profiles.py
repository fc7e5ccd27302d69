"""What threads ran and waited in over some seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFrame:
    """One frame of a sampled stack."""

    # Function, demangled; empty when unknown.
    function: str = ""
    # Source file of a Python frame, else the file name of the module.
    file: str = ""
    # Line of a Python frame; 0 when unknown.
    line: int = 0
    # True for a Python frame.
    python: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileStack:
    """One stack, innermost frame first, and how often it was sampled."""

    # Frames of Python and native code, each in its place.
    frames: tuple[ProfileFrame, ...] = ()
    # Samples.
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileWait:
    """Time that a thread was off the CPU, by what it waited in."""

    # "futex", "epoll_wait", "runnable" (it wanted to run and had no CPU) ...
    reason: str = ""
    # Share of the looks at which it was there, 0 to 1.
    share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileThread:
    """One thread over the time of the profile: what it ran, and what it waited in."""

    # Process.
    pid: int = 0
    # Thread id.
    tid: int = 0
    # The 15-byte name.
    name: str = ""
    # Samples a second while it runs.
    hz: float = 0.0
    # Length of the profile, milliseconds.
    duration_ms: float = 0.0
    # CPU time that it used, milliseconds.
    cpu_ms: float = 0.0
    # Stacks that were sampled, the most frequent first.
    stacks: tuple[ProfileStack, ...] = ()
    # What it did when it was off the CPU, the most frequent first.
    waits: tuple[ProfileWait, ...] = ()
    # What the profile lacks of this thread; empty when nothing.
    doubt: str = ""
