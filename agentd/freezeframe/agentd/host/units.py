"""Launch command of a systemd unit, from its files: the only place that has it once a process overwrote its own."""

from __future__ import annotations

import os
import re
import shlex

from freezeframe.agentd.host import Host
from freezeframe.agentd.host.procfs import ProcfsError, read_file

# In the order in which systemd prefers them.
_FOLDERS = (
    "run/systemd/transient",
    "etc/systemd/system",
    "run/systemd/system",
    "run/systemd/generator",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
_NAME = re.compile(r"[\w:.@-]+\.service")
_EXEC_START = re.compile(r"^ExecStart[ \t]*=[ \t]*[@:+!|-]*(.*)$", re.MULTILINE)
_DROP_INS = 64


def launch_command(host: Host, unit: str) -> tuple[bytes, ...]:
    """Arguments of the unit's last ExecStart, specifiers and variables unresolved; () when it cannot be read."""
    if not _NAME.fullmatch(unit):
        return ()
    names = tuple(dict.fromkeys((unit, re.sub(r"@[^.]*\.service$", "@.service", unit))))
    paths = [f"{folder}/{name}" for name in names for folder in _FOLDERS]
    commands: list[str] = []
    for text in (next(filter(None, (_read(host, path) for path in paths)), ""), *_drop_ins(host, names)):
        for command in _EXEC_START.findall(re.sub(r"\\\r?\n", " ", text)):
            # An empty one takes back those before it.
            commands = [*commands, command.strip()] if command.strip() else []
    try:
        return tuple(word.encode("utf-8", "surrogateescape") for word in shlex.split(commands[-1]))
    except (IndexError, ValueError):
        return ()


def _drop_ins(host: Host, names: tuple[str, ...]) -> list[str]:
    """The files that add to a unit, in the order in which systemd reads them: by name, wherever they are."""
    found: dict[str, str] = {}
    for folder in _FOLDERS:
        for name in names:
            try:
                listed = os.listdir(host.root / folder / f"{name}.d")
            except OSError:
                continue
            for each in listed:
                if each.endswith(".conf"):
                    found.setdefault(each, f"{folder}/{name}.d/{each}")
    return [_read(host, found[each]) for each in sorted(found)[:_DROP_INS]]


def _read(host: Host, path: str) -> str:
    try:
        return read_file(str(host.root / path)).decode("utf-8", "surrogateescape")
    except ProcfsError:
        return ""
