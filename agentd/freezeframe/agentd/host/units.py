"""Launch command of a systemd unit, from its file: the only place that has it once a process overwrote its own."""

from __future__ import annotations

import re
import shlex

from freezeframe.agentd.host import Host
from freezeframe.agentd.host.procfs import ProcfsError, read_file

# In the order in which systemd prefers them.
_FOLDERS = ("etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system")
_NAME = re.compile(r"[\w:.@-]+\.service")
_EXEC_START = re.compile(r"^ExecStart[ \t]*=[ \t]*[@:+!|-]*(.+)$", re.MULTILINE)


def launch_command(host: Host, unit: str) -> tuple[bytes, ...]:
    """Arguments of the unit's last ExecStart, specifiers and variables unresolved; () when it cannot be read."""
    if not _NAME.fullmatch(unit):
        return ()
    template = re.sub(r"@[^.]*\.service$", "@.service", unit)
    for folder in _FOLDERS:
        for name in dict.fromkeys((unit, template)):
            try:
                text = read_file(str(host.root / folder / name)).decode("utf-8", "surrogateescape")
            except ProcfsError:
                continue
            commands = _EXEC_START.findall(re.sub(r"\\\r?\n", " ", text))
            try:
                return tuple(word.encode("utf-8", "surrogateescape") for word in shlex.split(commands[-1]))
            except (IndexError, ValueError):
                return ()
    return ()
