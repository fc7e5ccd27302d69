"""The client's configuration: names of hosts and defaults of options, in TOML.

    [defaults]
    window = 1.0        # seconds between the two looks
    deadline = 5.0      # seconds for a capture
    output = "text"     # text, json, markdown or brief
    color = "auto"      # auto, always or never

    [groups]            # --group NAME; node sets and names of hosts
    prod = ["gpu-[01-32]", "router-1"]

    [hosts."gpu-[01-32]"]                               # a node set; {host} is each one's name
    address = "ssh://{host}.example.net"

    [hosts.gpu-07]
    address = "unix:/run/freezeframe/capture.sock"     # or ssh://HOST, tls://HOST:PORT ...

    [tls]               # for tls://; these are the defaults, beside the user's config.toml
    certificate = "~/.config/freezeframe/client.crt"
    key = "~/.config/freezeframe/client.key"
    ca = "~/.config/freezeframe/ca.crt"

`/etc/freezeframe/client.toml` is read first, `$XDG_CONFIG_HOME/freezeframe/config.toml` (else under `~/.config`) over
it. A key that nobody knows is an error: a misspelt default must not pass in silence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from freezeframe.client.errors import ConfigError, HostError
from freezeframe.client.node_sets import nodes

SYSTEM_FILE = "/etc/freezeframe/client.toml"
OUTPUTS = ("text", "json", "markdown", "brief")
COLORS = ("auto", "always", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What the files say; None where they say nothing."""

    # Address by host name, as written.
    hosts: Mapping[str, str] = field(default_factory=dict)
    # Node sets and names of hosts, by group.
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    window_s: float | None = None
    deadline_s: float | None = None
    output: str | None = None
    color: str | None = None
    # Paths by "certificate", "key", "ca", as written.
    tls: Mapping[str, str] = field(default_factory=dict)


TLS_FILES = {"certificate": "client.crt", "key": "client.key", "ca": "ca.crt"}


def tls_files(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Paths of certificate, key and ca for calls over TLS; whether they are there is another question."""
    beside = os.path.dirname(user_file(environ))
    named = {key: os.path.expanduser(path) for key, path in config.tls.items()}
    return {key: named.get(key) or os.path.join(beside, name) for key, name in TLS_FILES.items()}


def user_file(environ: Mapping[str, str]) -> str:
    """Path of the user's file."""
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".config")
    return os.path.join(base, "freezeframe", "config.toml")


def load(environ: Mapping[str, str], explicit: str | None = None) -> Config:
    """Read the files, or `explicit` alone. A missing file counts as empty, unless named. Raises ConfigError."""
    if explicit is not None:
        return _merge(Config(), _read(explicit, required=True), explicit)
    config = Config()
    for path in (SYSTEM_FILE, user_file(environ)):
        config = _merge(config, _read(path, required=False), path)
    return config


def _read(path: str, *, required: bool) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        if required:
            raise ConfigError(f"reading the configuration {path}: there is no such file") from error
        return {}
    except OSError as error:
        raise ConfigError(
            f"reading the configuration {path}: {error.strerror}",
            "make it readable, set HOME to your own, or name another with --config (/dev/null for none)",
        ) from error
    return _parse(data, path)


def _parse(data: bytes, path: str) -> dict[str, Any]:
    # Imported here: most machines have no file, and a parser costs start-up time.
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415
    else:
        import tomli as tomllib  # noqa: PLC0415
    try:
        parsed: dict[str, Any] = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        # No UTF-8, no TOML, a number of thousands of digits, brackets without end.
        raise ConfigError(f"reading the configuration {path}: {error}") from error
    if _has_nul(parsed):
        raise ConfigError(f"reading the configuration {path}: no name, address or path has a NUL (\\u0000) in it")
    return parsed


def _has_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nul, (*value, *value.values())))
    return any(map(_has_nul, value)) if isinstance(value, list) else isinstance(value, str) and "\0" in value


def _merge(base: Config, raw: dict[str, Any], path: str) -> Config:
    _known(raw, {"defaults", "groups", "hosts", "tls"}, path, "")
    defaults = _table(raw, "defaults", path)
    _known(defaults, {"window", "deadline", "output", "color"}, path, "defaults.")
    hosts = dict(base.hosts)
    for name, entry in _table(raw, "hosts", path).items():
        if not isinstance(entry, dict) or not isinstance(entry.get("address"), str):
            raise ConfigError(f'reading the configuration {path}: hosts.{name} needs address = "unix:PATH"')
        _known(entry, {"address"}, path, f"hosts.{name}.")
        hosts.update({each: entry["address"].replace("{host}", each) for each in _nodes(name, path)})
    groups = dict(base.groups)
    for name, members in _table(raw, "groups", path).items():
        if not isinstance(members, list) or not all(isinstance(each, str) for each in members):
            raise ConfigError(f'reading the configuration {path}: groups.{name} must be a list such as ["gpu-[01-32]"]')
        if not all(each.strip() for each in members):
            raise ConfigError(f"reading the configuration {path}: groups.{name}: the name of a host is empty")
        groups[name] = tuple(members)
    tls = _table(raw, "tls", path)
    _known(tls, set(TLS_FILES), path, "tls.")
    for key, value in tls.items():
        if not isinstance(value, str) or not os.path.isabs(os.path.expanduser(value)):
            raise ConfigError(f"reading the configuration {path}: tls.{key} must be an absolute path, or begin with ~")
    return Config(
        hosts=hosts,
        groups=groups,
        window_s=_seconds(defaults, "window", path, base.window_s),
        deadline_s=_seconds(defaults, "deadline", path, base.deadline_s),
        output=_choice(defaults, "output", OUTPUTS, path, base.output),
        color=_choice(defaults, "color", COLORS, path, base.color),
        tls={**base.tls, **tls},
    )


def _nodes(name: str, path: str) -> tuple[str, ...]:
    """The hosts of a set, with what is wrong with it said of the file."""
    try:
        return nodes(name)
    except HostError as error:
        raise ConfigError(f"reading the configuration {path}: hosts: {error}", error.hint) from error


def _known(table: dict[str, Any], names: set[str], path: str, prefix: str) -> None:
    for key in table:
        if key not in names:
            expected = ", ".join(sorted(names))
            raise ConfigError(f"reading the configuration {path}: unknown key {prefix}{key}; known are {expected}")


def _table(raw: dict[str, Any], key: str, path: str) -> dict[str, Any]:
    value = raw.get(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"reading the configuration {path}: {key} must be a table")
    return value


def _seconds(table: dict[str, Any], key: str, path: str, default: float | None) -> float | None:
    value = table.get(key, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 3600:  # noqa: PLR2004
        raise ConfigError(f"reading the configuration {path}: defaults.{key} must be seconds between 0 and 3600")
    return float(value)


def _choice(table: dict[str, Any], key: str, choices: tuple[str, ...], path: str, default: str | None) -> str | None:
    value = table.get(key, default)
    if value is not None and value not in choices:
        raise ConfigError(f"reading the configuration {path}: defaults.{key} must be one of {', '.join(choices)}")
    return value if value is None else str(value)
