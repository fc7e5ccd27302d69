"""Readable names of Rust (legacy and v0) and C++ functions."""

from __future__ import annotations

import functools
import re

import cpp_demangle
import pyderust

from freezeframe.agentd.host.text import escape

_NAME_CHARACTERS = 512
_RUST_LEGACY = re.compile(r"^_?_ZN.*17h[0-9a-f]{16}E")
# What LLVM adds to a function of which it made a copy.
_LOCAL_COPY = re.compile(r"\.\d+$")
_VERSION = re.compile(r"@@?[A-Za-z0-9_.]+$")


@functools.lru_cache(maxsize=16384)
def demangle(mangled: bytes) -> str:
    """Name for people, escaped and at most 512 characters long; as it is when it is not mangled or not understood."""
    text = escape(mangled, 4096)
    return escape(_demangled(text).encode(), _NAME_CHARACTERS)


def _demangled(text: str) -> str:
    bare = _VERSION.sub("", text)
    try:
        if bare.startswith(("_R", "__R")) or _RUST_LEGACY.match(bare):
            return _LOCAL_COPY.sub("", str(pyderust.demangle(bare)))
        if bare.startswith("_Z"):
            return str(cpp_demangle.demangle(bare))
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
    return bare
