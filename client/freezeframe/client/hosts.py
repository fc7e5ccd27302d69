"""From what the user calls a host to the unix socket of its agent.

Each role has a socket in the agent's directory: `view.sock`, `capture.sock`, `admin.sock`; a higher role's socket
serves the lower ones too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from freezeframe.client.config import Config
from freezeframe.client.errors import AgentNotThereError, HostError

Role = Literal["view", "capture", "admin"]

# Sockets that serve a role, the one made for it first.
_SERVED_BY: dict[Role, tuple[str, ...]] = {
    "view": ("view.sock", "capture.sock", "admin.sock"),
    "capture": ("capture.sock", "admin.sock"),
    "admin": ("admin.sock",),
}
SYSTEM_DIRECTORY = "/run/freezeframe"

DAEMON_HINT = "start the daemon: sudo systemctl start freezeframe-agentd, or sudo freezeframe-agentd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One agent."""

    # Its socket.
    path: str
    # What to call it in a sentence.
    name: str


def resolve(host: str | None, role: Role, config: Config, environ: Mapping[str, str]) -> Target | None:
    """Find the agent of `host`, else that of FREEZEFRAME_HOST, else the local daemon; None when no daemon is there.

    Raises HostError for a form that this version does not know, AgentNotThereError for a named one without socket.
    """
    named = host or environ.get("FREEZEFRAME_HOST") or None
    if named is None:
        return _local(role, environ)
    address = config.hosts.get(named, named)
    if not address.startswith("unix:"):
        raise _not_supported(named, address, config)
    path = address.removeprefix("unix:")
    # A current directory that is gone has no name; nothing relative to it is there either.
    with suppress(FileNotFoundError):
        path = os.path.abspath(path)
    found = _for_role(path, role)
    if found is None:
        raise AgentNotThereError(f"connecting to {named}: there is no {_SERVED_BY[role][0]} in {path}", DAEMON_HINT)
    return Target(path=found, name=named)


def local_directories(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Directories in which the local daemon may have its sockets."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    return (SYSTEM_DIRECTORY, *((os.path.join(runtime, "freezeframe"),) if runtime else ()))


def not_there(target: Target) -> AgentNotThereError:
    """Make the error for a socket on which nothing listens."""
    return AgentNotThereError(f"connecting to {target.name}: no agent listens on {target.path}", DAEMON_HINT)


def _local(role: Role, environ: Mapping[str, str]) -> Target | None:
    for directory in local_directories(environ):
        path = _in_directory(directory, role)
        if path is not None:
            return Target(path=path, name="the local daemon")
    return None


def _for_role(path: str, role: Role) -> str | None:
    """Find the socket for `role`: in the directory `path`, beside a socket named after another role, or `path`."""
    if os.path.isdir(path):
        return _in_directory(path, role)
    directory, name = os.path.split(path)
    if name in _SERVED_BY["view"] and name not in _SERVED_BY[role]:
        return _in_directory(directory, role) or path
    return path


def _in_directory(directory: str, role: Role) -> str | None:
    """Pick the first socket that this user may open, else the first that is there."""
    present = [path for name in _SERVED_BY[role] if _is_socket(path := os.path.join(directory, name))]
    return next((path for path in present if os.access(path, os.W_OK)), present[0] if present else None)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _not_supported(named: str, address: str, config: Config) -> HostError:
    known = ", ".join(sorted(config.hosts)) or "none yet"
    shown = named if named == address else f"{named} ({address})"
    return HostError(
        f"{shown} cannot be reached: this version speaks to agents on this machine only",
        f"name a socket (unix:PATH) or a host of the configuration with such an address (known: {known}); "
        "for another machine run freezeframe there: ssh HOST freezeframe snap",
    )
