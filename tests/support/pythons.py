"""The Pythons at hand on this machine: this one, pyenv's, those on PATH and those named in FREEZEFRAME_PYTHONS.

FREEZEFRAME_PYTHONS is a list of interpreters, separated as PATH is. Of each minor version all different patch releases
are kept: they may be laid out differently.
"""

from __future__ import annotations

import functools
import glob
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

import pytest

MINORS = ("3.10", "3.11", "3.12", "3.13", "3.14")


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    path: str
    # "3.11.7"
    version: str

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    def has(self, *modules: str) -> bool:
        code = f"import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, {modules!r})))"
        return subprocess.run([self.path, "-c", code], check=False, stderr=subprocess.DEVNULL).returncode == 0


@functools.cache
def pythons() -> tuple[Python, ...]:
    """One of each version, in order of versions."""
    candidates = [
        *filter(None, os.environ.get("FREEZEFRAME_PYTHONS", "").split(os.pathsep)),
        sys.executable,
        *sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.1[0-9]*/bin/python3"))),
        *filter(None, (shutil.which(f"python{minor}") for minor in MINORS)),
        "/usr/bin/python3",
    ]
    found: dict[str, Python] = {}
    for path in candidates:
        code = "import sys, sysconfig; print(sys.version.split()[0], sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
        try:
            done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False, timeout=20)
        except OSError:
            continue
        version, _, free_threaded = done.stdout.strip().partition(" ")
        if done.returncode == 0 and free_threaded == "0" and version.rpartition(".")[0] in MINORS:
            found.setdefault(version, Python(path=path, version=version))
    return tuple(sorted(found.values(), key=lambda python: tuple(map(int, python.version.split(".")))))


def each_python() -> pytest.MarkDecorator:
    """Parametrise by `python`: each at hand, and a skip for each minor version that is not."""
    there = [pytest.param(python, id=python.version) for python in pythons()]
    missing = [minor for minor in MINORS if minor not in {python.minor for python in pythons()}]
    skipped = [
        pytest.param(None, id=minor, marks=pytest.mark.skip(reason=f"no Python {minor} here: see FREEZEFRAME_PYTHONS"))
        for minor in missing
    ]
    return pytest.mark.parametrize("python", [*there, *skipped])
