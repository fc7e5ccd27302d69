"""What native stacks cost once per process, done before workers are forked."""

from __future__ import annotations

from contextlib import suppress

from freezeframe.agentd.host.native import btf, libdw, task_iterator


def warm() -> None:
    """Read the kernel's type information (30 ms) and load libdw (4 ms), where they are."""
    with suppress(btf.BtfError):
        task_iterator.kernel_facts()
    with suppress(libdw.LibdwError):
        libdw.load()
