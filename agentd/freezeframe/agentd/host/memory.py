"""Telling, without touching it, that a process's memory cannot be read now."""

from __future__ import annotations

from freezeframe.agentd.host import procfs

# Calls that wait for the memory lock for writing.
_MAPPING_CALLS = frozenset(
    {
        "mmap", "munmap", "mremap", "mprotect", "pkey_mprotect", "madvise", "brk", "mlock", "mlock2", "munlock",
        "mlockall", "munlockall", "shmat", "shmdt", "userfaultfd", "fork", "vfork", "clone", "clone3", "exit_group",
    }
)  # fmt: skip


def stall_of(directory: str, machine: str) -> str:
    """Why a read of its memory would wait, such as "thread 4712 waits for the memory lock in mmap"; "" when it won't.

    A thread in uninterruptible sleep on a read-write semaphore, in a call that maps memory or in a page fault, queues
    for the memory lock; every later reader of that memory queues behind it. Raises ProcfsError.
    """
    for tid in procfs.tids(directory):
        thread = f"{directory}/task/{tid}"
        try:
            if procfs.stat(thread).state != "D" or not procfs.wchan(thread).startswith("rwsem_down"):
                continue
            call = procfs.syscall(thread, machine)
        except procfs.DeniedError:
            continue
        except procfs.ProcfsError:
            continue  # ended
        if call.name in _MAPPING_CALLS:
            return f"thread {tid} waits for the memory lock in {call.name}"
        if call.number < 0:
            return f"thread {tid} waits for the memory lock in a page fault"
    return ""
