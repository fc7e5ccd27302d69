"""What the management libraries of GPUs have in common, whoever made them."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Protocol

from freezeframe.judge.model import Gpu


class GpuLibraryError(Exception):
    """The library cannot be used here; `hint` says what helps, empty when nothing does."""

    def __init__(self, detail: str, hint: str = "") -> None:
        """Keep the sentence and the next step."""
        super().__init__(detail)
        self.hint = hint


class NoGpuLibraryError(GpuLibraryError):
    """There is no library: no driver of that maker is installed here."""


class Doing(Protocol):
    """Is told what is being asked."""

    def __call__(self, what: str, /) -> None:
        """Said before it is asked."""


class Read(Protocol):
    """Asks one GPU."""

    def __call__(self, index: int, doing: Doing, /, *, brief: bool = False) -> Gpu:
        """Everything, or briefly what changes from second to second.

        `doing` is told each question before it is asked. May hang; raises nothing.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLibrary:
    """A library that was started."""

    # "NVML" or "AMD SMI".
    name: str
    # GPUs that it knows.
    count: int
    read: Read
    # The maker's own program, which hangs where this library does.
    tool: str
    # What lines of the kernel's log about it begin with.
    driver: str


def trusted(path: str) -> bool:
    """Whether it is there and nobody but root may change it; false where it is not there. Raises GpuLibraryError."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise GpuLibraryError(f"{path} may be changed by others than root: not loaded", f"chown root:root {path}")
    return True
