"""The daemon's configuration: one TOML file into frozen dataclasses; each key has a default, unknown ones are errors.

runtime_dir = "/run/freezeframe"
log_level = "info"
clients = ["harness", "10.0.0.7"]     # the group that matters, by title or address

[groups]                              # who may use each socket; empty = the daemon's own group
capture = "freezeframe"

[capture]
max_window_s = 30

[copy]                                # of every kept snapshot; a bucket: pip install 'freezeframe[copy]'
to = "s3://bucket/prefix"             # credentials: AWS_ACCESS_KEY_ID ... in the environment, or the instance's role

[audit]                               # one line per call; without it they are among the log lines
file = "/var/lib/freezeframe/audit.log"

[[schedules]]                         # captures that happen by themselves
name = "stuck"
when = "stuck-for=30s"                # or every_s = 3600, or cron = "0 3 * * *"
keep = 30

[[hooks]]                             # told of what schedules captured, as JSON; or url = "https://..." for a webhook
name = "page"
command = ["/usr/local/bin/page-on-call"]
schedules = ["stuck"]

[metrics]                             # Prometheus, on 127.0.0.1 unless address says otherwise
port = 9817

[[roles]]                             # where a role is not found by itself
role = "router"
title = "my-router"
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import math
import os
import re
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from freezeframe.agentd.errors import ConfigError
from freezeframe.agentd.schedules.checks import refusal
from freezeframe.agentd.schedules.schedule import NAME, Schedule
from freezeframe.judge.model import Process

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PATH = "/etc/freezeframe/agentd.toml"
_LAST_PORT = 65535
_HOOK_S = 60.0
# A line of the audit has a few kilobytes at most.
_SMALLEST_AUDIT, _MOST_AUDITS = 64 * 1024, 1000
# TOML's own bound.
_LARGEST = 2**63 - 1
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Group that may use each socket; empty = the group that the daemon runs as."""

    # list, get, watch, doctor.
    view: str = ""
    # snap, pin, and the above.
    capture: str = ""
    # rm, schedules, and the above.
    admin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureLimits:
    """What a capture gets when the client says nothing, and what it can ask for at most."""

    # Between the two looks.
    window_s: float = 1.0
    # The most that a client gets of it.
    max_window_s: float = 30.0
    # For all of it; what is not there by then is left out, and said.
    deadline_s: float = 5.0
    # The most that a client gets of it.
    max_deadline_s: float = 120.0
    # The longest `snap --profile`.
    max_profile_s: float = 30.0
    # Whether a client may ask that running threads are stopped for microseconds.
    allow_seize: bool = False
    # Captures that wait while one runs; one more is refused.
    queue: int = 8
    # Captures that may begin one right after the other; joining one that runs is free.
    burst: int = 30
    # Captures that may begin per minute in the long run.
    per_minute: float = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """How much is kept: the oldest unpinned snapshots go first."""

    # Files.
    max_snapshots: int = 200
    # Of all files together.
    max_bytes: int = 2 * 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy of every kept snapshot in another place, tried until it is there."""

    # "s3://BUCKET/PREFIX" or "file:///DIRECTORY"; empty = none.
    to: str = ""
    # Of what speaks like S3, "https://HOST:PORT"; empty = AWS.
    endpoint: str = ""
    # Of the bucket; empty = as AWS_REGION in the environment says.
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """The always-armed part (eBPF)."""

    # False = no program is ever loaded; a capture says so.
    enabled: bool = True
    # Kernel headers to compile with, root's alone to write; empty = the agent's own small tree.
    kernel_headers: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsEndpoint:
    """`/metrics` for Prometheus: plain HTTP, and whoever reaches it is answered."""

    # 0 = there is none.
    port: int = 0
    # One of this host, or "0.0.0.0" or "::" for all of them; nothing keeps others out then but the network.
    address: str = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """What is told of each snapshot of a schedule or trigger: a command or a web address, never from a client."""

    # What the audit calls it.
    name: str
    # Program and arguments; it gets the event as JSON on standard input.
    command: tuple[str, ...] = ()
    # The event is sent there as JSON with POST.
    url: str = ""
    # Names of schedules; empty = all.
    schedules: tuple[str, ...] = ()
    # It is ended then, and so is all that it started.
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """The listener for other hosts: mutual TLS. Nothing listens unless all four of its texts are given."""

    # ADDRESS:PORT, such as "0.0.0.0:7443" or "[::]:7443".
    listen: str = ""
    # The agent's own, a PEM file made by `freezeframe-agentd certs`; all three are read again when they change.
    certificate: str = ""
    # Of that certificate.
    key: str = ""
    # Who issues the clients' certificates.
    client_ca: str = ""
    # Connections in all; a quarter of them for one certificate.
    max_connections: int = 64
    # Time for the handshake.
    handshake_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLog:
    """One line per call, refused ones too, in a file of its own. A file that was renamed is opened anew."""

    # In a directory that the agent's user may write in; empty = the lines are among those of the log.
    file: str = ""
    # It is rotated before it grows larger.
    max_bytes: int = 16 * 1024 * 1024
    # So many rotated ones are kept: FILE.1 is the newest.
    keep: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleOverride:
    """A role for the processes that match all of what is given."""

    # Such as "router" or "scheduler".
    role: str
    # What its title begins with.
    title: str = ""
    # Its program, by the whole path.
    exe: str = ""
    # Its systemd unit.
    unit: str = ""
    # A TCP port it listens on.
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All of it."""

    # Sockets; must not be writable by others.
    runtime_dir: str = "/run/freezeframe"
    # Snapshots, in `snapshots/`.
    state_dir: str = "/var/lib/freezeframe"
    # Socket of the helper that opens kernel stacks where it runs and the agent has no CAP_SYS_ADMIN.
    kernel_stacks: str = "/run/freezeframe-kernel-stacks/socket"
    # debug, info, warning or error.
    log_level: str = "info"
    # Titles or addresses of the clients that matter; empty = the group that owns most of the stuck requests.
    clients: tuple[str, ...] = ()
    groups: Groups = Groups()
    capture: CaptureLimits = CaptureLimits()
    store: StoreLimits = StoreLimits()
    copy: Copy = Copy()
    recorder: Recorder = Recorder()
    remote: Remote = Remote()
    audit: AuditLog = AuditLog()
    # Where roles are not found by themselves.
    roles: tuple[RoleOverride, ...] = ()
    # Captures that happen by themselves; `freezeframe schedule add` adds more, kept in the state directory.
    schedules: tuple[Schedule, ...] = ()
    # Who is told of what they captured.
    hooks: tuple[Hook, ...] = ()
    metrics: MetricsEndpoint = MetricsEndpoint()


def load(path: str) -> Config:
    """Read a file. Raises ConfigError, which names file, key and the nearest key there is."""
    try:
        with open(path, "rb") as stream:
            text = stream.read().decode()
    except OSError as error:
        raise ConfigError(f"reading {path}: {error.strerror}", "name another file with --config") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"reading {path}: {error}", "name another file with --config") from error
    return parse(text, path)


def in_force(path: str | None, *, runtime_dir: str | None = None, state_dir: str | None = None) -> Config:
    """Give the configuration of a daemon: its file (the default one may be missing), then what its options say.

    Raises ConfigError.
    """
    config = load(path or DEFAULT_PATH) if path or os.path.exists(DEFAULT_PATH) else Config()
    if runtime_dir:
        config = dataclasses.replace(config, runtime_dir=os.path.abspath(runtime_dir))
    if state_dir:
        config = dataclasses.replace(config, state_dir=os.path.abspath(state_dir))
    return config


def parse(text: str, source: str) -> Config:
    """Parse TOML; `source` is the file's name for messages. Raises ConfigError."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits and brackets without end are no errors of TOML's own.
        raise ConfigError(f"reading {source}: {error}") from error
    config = _build(Config, table, source, "")
    _check(config, source)
    return config


def show(config: Config) -> str:
    """Give what is in force, as TOML that `parse` accepts."""
    return "\n".join([*_lines(config, "")]).strip() + "\n"


T = TypeVar("T")


def _build(kind: type[T], table: Mapping[str, Any], source: str, prefix: str) -> T:
    hints = typing.get_type_hints(kind)
    values: dict[str, object] = {}
    for key, value in table.items():
        where = f"{prefix}{key}"
        if key not in hints:
            raise ConfigError(f"{source}: unknown key {where}", _nearest(key, [*hints], prefix))
        values[key] = _value(hints[key], value, source, where)
    missing = [
        field.name
        for field in dataclasses.fields(typing.cast("Any", kind))
        if field.default is dataclasses.MISSING and field.name not in values
    ]
    if missing:
        raise ConfigError(f"{source}: {prefix}{missing[0]} is missing")
    return kind(**values)


def _nearest(key: str, known: list[str], prefix: str) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean {prefix}{near[0]}?" if near else f"known keys: {', '.join(prefix + name for name in known)}"


def _value(hint: Any, value: Any, source: str, where: str) -> object:
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if not isinstance(value, list):
            raise ConfigError(f"{source}: {where} must be a list")
        return tuple(_value(item, each, source, f"{where}[{index}]") for index, each in enumerate(value))
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ConfigError(f"{source}: {where} must be a table")
        return _build(typing.cast("type[object]", hint), value, source, f"{where}.")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ConfigError(f"{source}: {where} is too large a number")
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{source}: {where} has a NUL in it")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not hint:
        raise ConfigError(f"{source}: {where} must be {_NAMES[hint]}, not {value!r}")
    return typing.cast("object", value)


_NAMES = {str: "a text", float: "a number", int: "a whole number", bool: "true or false"}


def _check(config: Config, source: str) -> None:
    def require(holds: bool, key: str, rule: str) -> None:
        if not holds:
            raise ConfigError(f"{source}: {key} must be {rule}")

    limits = config.capture
    for key in ("runtime_dir", "state_dir", "kernel_stacks"):
        require(getattr(config, key).startswith("/"), key, "an absolute path")
    require(config.log_level in LOG_LEVELS, "log_level", f"one of {', '.join(LOG_LEVELS)}")
    for field in dataclasses.fields(limits):
        value = getattr(limits, field.name)
        require(math.isfinite(value) and value >= 0, f"capture.{field.name}", "a finite number, 0 or more")
    for name in ("deadline_s", "burst", "per_minute"):
        require(getattr(limits, name) > 0, f"capture.{name}", "more than 0")
    for name in ("window_s", "deadline_s"):
        require(getattr(limits, name) <= getattr(limits, f"max_{name}"), f"capture.{name}", f"at most max_{name}")
    require(config.store.max_snapshots >= 1, "store.max_snapshots", "1 or more")
    require(config.store.max_bytes >= 1, "store.max_bytes", "1 or more")
    to, endpoint = _split(config.copy.to), _split(config.copy.endpoint)
    # This file is printed and read by many.
    require("@" not in to.netloc + endpoint.netloc, "copy", "without credentials: they belong into the environment")
    place = (to.scheme == "s3" and _BUCKET.fullmatch(to.netloc)) or (
        to.scheme == "file" and not to.netloc and to.path.startswith("/")
    )
    require(bool(place) or not config.copy.to, "copy.to", "s3://BUCKET/PREFIX or file:///DIRECTORY")
    served = _is_web_address(config.copy.endpoint) or not config.copy.endpoint
    require(served, "copy.endpoint", "https://HOST:PORT or http://HOST:PORT")
    require(config.remote.max_connections >= 4, "remote.max_connections", "4 or more")  # noqa: PLR2004 - a quarter is 1
    require(0 < config.remote.handshake_s <= 60, "remote.handshake_s", "more than 0 and at most 60")  # noqa: PLR2004
    require(config.audit.file.startswith("/") or not config.audit.file, "audit.file", "an absolute path")
    require(config.audit.max_bytes >= _SMALLEST_AUDIT, "audit.max_bytes", f"{_SMALLEST_AUDIT} or more")
    require(1 <= config.audit.keep <= _MOST_AUDITS, "audit.keep", f"a whole number from 1 to {_MOST_AUDITS}")
    roles = [role.name.lower().replace("_", "-") for role in Process.Role if role.value]
    for index, override in enumerate(config.roles):
        require(override.role in roles, f"roles[{index}].role", f"one of {', '.join(roles)}")
        given = (override.title, override.exe, override.unit, override.port)
        require(any(given), f"roles[{index}]", "given a title, exe, unit or port to match")
    _check_schedules(config, source)
    require(0 <= config.metrics.port <= _LAST_PORT, "metrics.port", f"a port up to {_LAST_PORT}, or 0 for none")
    require(_is_ip_address(config.metrics.address), "metrics.address", "an IP address")
    for index, hook in enumerate(config.hooks):
        where = f"hooks[{index}]"
        require(NAME.fullmatch(hook.name) is not None, f"{where}.name", "up to 64 letters, digits, dots or dashes")
        require([each.name for each in config.hooks].count(hook.name) == 1, f"{where}.name", "its own")
        require(bool(hook.command) != bool(hook.url), where, "given either a command or a url")
        require(
            not hook.command or hook.command[0].startswith("/"), f"{where}.command", "the absolute path of a program"
        )
        require(not hook.url or _is_web_address(hook.url), f"{where}.url", "an http or https address")
        require(0 < hook.timeout_s <= _HOOK_S, f"{where}.timeout_s", f"a number of seconds up to {_HOOK_S:g}")


def _split(text: str) -> SplitResult:
    """Take an address apart; one that cannot be is empty."""
    try:
        parts = urlsplit(text)
        # It is looked at when it is asked for.
        port = parts.port
    except ValueError:
        port = 0
    return urlsplit("") if port == 0 else parts


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_web_address(text: str) -> bool:
    parts = _split(text)
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and text.isprintable() and " " not in text


def _check_schedules(config: Config, source: str) -> None:
    names = [schedule.name for schedule in config.schedules]
    for index, schedule in enumerate(config.schedules):
        detail, hint = refusal(schedule)
        if names.index(schedule.name) != index:
            detail = f"the name {schedule.name!r} is taken"
        if not detail and schedule.deadline_s > config.capture.max_deadline_s:
            detail = "deadline_s must be at most capture.max_deadline_s"
        if not detail and schedule.window_s > config.capture.max_window_s:
            detail = "window_s must be at most capture.max_window_s"
        if detail:
            raise ConfigError(f"{source}: schedules[{index}]: {detail}", hint)


def _lines(value: object, prefix: str) -> typing.Iterator[str]:
    tables = []
    for field in dataclasses.fields(typing.cast("Any", value)):
        item = getattr(value, field.name)
        if dataclasses.is_dataclass(item) or (isinstance(item, tuple) and item and dataclasses.is_dataclass(item[0])):
            tables.append((field.name, item))
        else:
            yield f"{field.name} = {_toml(item)}"
    for name, item in tables:
        for each in item if isinstance(item, tuple) else (item,):
            yield ""
            yield f"[[{prefix}{name}]]" if isinstance(item, tuple) else f"[{prefix}{name}]"
            yield from _lines(each, f"{prefix}{name}.")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        plain = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in plain) + '"'
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value)
