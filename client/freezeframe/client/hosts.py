"""From what the user calls a host to its agent: a socket of this machine, or a way to another one.

    unix:PATH                       a socket, or the directory of an agent's sockets
    USER@HOST                       over OpenSSH
    ssh://[USER@]HOST[:PORT][/DIR]  the same; DIR is the agent's directory, where it is not /run/freezeframe
    tls://HOST[:PORT]               over mutual TLS, to an agent that listens for other hosts
    kube://NAMESPACE/POD[:PORT]     over kubectl's port forwarding

Each role has a socket in the agent's directory: `view.sock`, `capture.sock`, `admin.sock`; a higher role's socket
serves the lower ones too.
"""

from __future__ import annotations

import os
import re
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
_LAST_PORT = 65535

DAEMON_HINT = "start the daemon: sudo systemctl start freezeframe-agentd, or sudo freezeframe-agentd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One agent."""

    # Its socket.
    path: str
    # What to call it in a sentence.
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh:
    """An agent behind sshd: its sockets are forwarded."""

    # HOST or USER@HOST, as ssh takes it.
    destination: str
    # None = what ssh's configuration says.
    port: int | None = None
    # Of the agent's sockets, on that host.
    directory: str = SYSTEM_DIRECTORY
    # Names of the sockets that serve the role, the one made for it first.
    sockets: tuple[str, ...]
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """An agent that listens for other hosts."""

    # A name or an address.
    host: str
    port: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kube:
    """An agent in a pod."""

    namespace: str
    pod: str
    port: int
    name: str


Place = Target | Ssh | Tls | Kube
# Of an agent that listens for other hosts, where nothing else is said.
PORT = 7443


def resolve(host: str | None, role: Role, config: Config, environ: Mapping[str, str]) -> Place | None:
    """Find the agent of `host`, else that of FREEZEFRAME_HOST, else the local daemon; None when no daemon is there.

    Raises HostError for a form that this version does not know, AgentNotThereError for a named one without socket.
    """
    if host is not None and not host.strip():
        # A variable that is not set must not become another host.
        raise HostError("the name of a host is empty", "name one, or leave HOST out for this machine")
    named = host or environ.get("FREEZEFRAME_HOST") or None
    if named is None:
        return _local(role, environ)
    address = config.hosts.get(named, named)
    if address.startswith("unix:"):
        return _unix(named, address, role)
    if address.startswith("ssh://") or ("@" in address and "://" not in address):
        return _ssh(named, address, role)
    if address.startswith("tls://"):
        return _tls(named, address)
    if address.startswith("kube://"):
        return _kube(named, address)
    raise _not_supported(named, address, config)


def _unix(named: str, address: str, role: Role) -> Target:
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


# What ssh takes for the name of a host, and hands to the programs of its configuration; never an option.
_SSH_HOST = r"\[[0-9A-Fa-f:.]+(?:%[\w.]+)?\]|[A-Za-z0-9_][\w.-]*"
_SSH_USER = r"[A-Za-z0-9_][\w.+-]*"
_SSH = re.compile(rf"(?:({_SSH_USER})@)?({_SSH_HOST})(?::(\d{{1,5}}))?((?:/[\w.-]+)+/?)?", re.ASCII)


def _ssh(named: str, address: str, role: Role) -> Ssh:
    url = address.startswith("ssh://")
    found = _SSH.fullmatch(address.removeprefix("ssh://"))
    user, host, port, directory = found.groups() if found else ("", "", "", "")
    if found is None or (not url and (port or directory)) or (port and not 0 < int(port) <= _LAST_PORT):
        raise HostError(
            f"{named} is no host for ssh", "give USER@HOST or ssh://USER@HOST[:PORT][/DIRECTORY-OF-THE-SOCKETS]"
        )
    host = host.strip("[]")
    return Ssh(
        destination=f"{user}@{host}" if user else host,
        port=int(port) if port else None,
        directory=(directory or "").rstrip("/") or SYSTEM_DIRECTORY,
        sockets=_SERVED_BY[role],
        name=named,
    )


_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][\w.-]*)(?::(\d{1,5}))?/?", re.ASCII)


def _tls(named: str, address: str) -> Tls:
    found = _HOST_AND_PORT.fullmatch(address.removeprefix("tls://"))
    port = int(found[2] or PORT) if found else 0
    if found is None or not 0 < port <= _LAST_PORT:
        raise HostError(f"{named} is no host for TLS", f"give tls://HOST[:PORT]; the port is {PORT} by default")
    return Tls(host=found[1].strip("[]"), port=port, name=named)


_POD = re.compile(r"([a-z0-9][a-z0-9-]{0,62})/([a-z0-9][a-z0-9.-]{0,252})(?::(\d{1,5}))?", re.ASCII)


def _kube(named: str, address: str) -> Kube:
    found = _POD.fullmatch(address.removeprefix("kube://"))
    port = int(found[3] or PORT) if found else 0
    if found is None or not 0 < port <= _LAST_PORT:
        raise HostError(f"{named} is no pod", f"give kube://NAMESPACE/POD[:PORT]; the port is {PORT} by default")
    return Kube(namespace=found[1], pod=found[2], port=port, name=named)


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
        f"{shown} is no host that this version can reach (known: {known})",
        f"over ssh: ssh://{address}; a socket: unix:PATH; or a host of the configuration with such an address"
        if re.fullmatch(_SSH_HOST, address, re.ASCII)
        else "give USER@HOST, ssh://HOST, unix:PATH, or a host of the configuration with such an address",
    )
