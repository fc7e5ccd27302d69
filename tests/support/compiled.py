"""Programs of tests/programs/native, compiled once per run of the tests and options."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

from tests.support.children import PROGRAMS

SOURCES = PROGRAMS / "native"


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="freezeframe-compiled-")


@functools.cache
def c_program(name: str, *options: str) -> str:
    """Compile NAME.c with gcc; needs("gcc")."""
    return _compile("gcc", name, ".c", ("-O1", "-pthread", *options))


@functools.cache
def rust_program(name: str, *options: str) -> str:
    """Compile NAME.rs with rustc; needs("rustc")."""
    return _compile("rustc", name, ".rs", ("-O", *options))


def _compile(compiler: str, name: str, suffix: str, options: tuple[str, ...]) -> str:
    made = Path(_folder().name) / f"{name}-{len(list(Path(_folder().name).iterdir()))}"
    subprocess.run([compiler, *options, str(SOURCES / f"{name}{suffix}"), "-o", str(made)], check=True)
    return str(made)
