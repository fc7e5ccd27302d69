"""Telling, without touching it, that a process's memory cannot be read now."""

from __future__ import annotations

from freezeframe.agentd.host import procfs

# Calls that take the memory lock for writing. Not fork and vfork: a vfork parent sleeps uninterruptibly by design.
_MAPPING_CALLS = frozenset(
    {"mmap", "munmap", "mremap", "mprotect", "pkey_mprotect", "brk", "mlock", "mlock2", "munlock", "mlockall",
     "munlockall", "shmat", "shmdt", "remap_file_pages"}
)  # fmt: skip
# Functions that wait for a disk, not for the lock: populating a mapping, or a fault in a file.
_DISK_WAITS = ("folio_", "__folio_", "wait_on_page", "io_schedule", "filemap_", "blk_", "submit_bio", "fuse_", "nfs")
# Functions that take the lock in a fault. The semaphore's own functions are never shown: the kernel skips them.
_FAULT_LOCKS = ("do_user_addr_fault", "lock_mm_and_find_vma", "do_page_fault", "__do_page_fault", "exc_page_fault")


def stall_of(directory: str, machine: str) -> str:
    """Why a read of its memory would wait, such as "thread 4712 waits for the memory lock in mmap"; "" when it won't.

    A thread in uninterruptible sleep in a call that maps memory, or in a fault, queues for the memory lock; every later
    reader of that memory queues behind it. A lock that is held with nobody queueing yet is not seen. Raises
    ProcfsError.
    """
    for tid in procfs.tids(directory):
        thread = f"{directory}/task/{tid}"
        try:
            if procfs.stat(thread).state != "D":
                continue
            where = procfs.wchan(thread)
            call = procfs.syscall(thread, machine)
        except procfs.ProcfsError:
            continue  # ended, or not ours to see
        if call.name in _MAPPING_CALLS and not where.startswith(_DISK_WAITS):
            return f"thread {tid} waits for the memory lock in {call.name}"
        if call.number < 0 and where.startswith(_FAULT_LOCKS):
            return f"thread {tid} waits for the memory lock in a page fault"
    return ""
