"""How gdb is asked for all stacks of a process: without what a user's own set-up or a network may add."""

from __future__ import annotations

_QUIET = ("-batch", "-nx", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off")
# The pid comes behind.
GDB = ("gdb", *_QUIET, "-ex", "thread apply all bt", "-p")
