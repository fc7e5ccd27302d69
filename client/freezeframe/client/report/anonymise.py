"""A snapshot with tokens in the place of host names, addresses, users and directories, the same for the same. Pure.

Loopback and unspecified addresses, ports, routes of HTTP and what a distribution or a package installed keep their
names: they tell of the trouble, not of the owner.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Sequence
from functools import partial

from freezeframe.client.report.redact import Redacted
from freezeframe.client.report.texts import texts_of
from freezeframe.v1 import snapshot_pb2

_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\.?\w)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?<=:)\d{1,3}(?:\.\d{1,3}){3})?(?![\w:])")
_URL_HOST = re.compile(r"(?<=://)[A-Za-z0-9][A-Za-z0-9._-]*(?=[:/?#\s]|$)")
# Directories that hold what the owner put there; a distribution's own stay.
_PATH = re.compile(
    r"(?<![\w/.:])/(?:home|root|data|mnt|srv|opt|tmp|var|scratch|models?|nfs|work|workspace|shared|lustre|raid|media|users?"
    r"|export|app)(?:/[^\s\"'<>:,;()\[\]]+)+"
)
_HOME = re.compile(r"/(?:home|users?)/([A-Za-z_][\w.-]*)")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/.*")
_LEAST_NAME = 3
_EVERYBODY = frozenset({"root", "localhost", "ubuntu", "user", "users", "python", "sglang", "vllm"})
# Symbols look like addresses and are none.
_LEFT = frozenset({"function", "kernel_stack", "kernel_frames", "syscall_arguments", "syscall", "wchan"})


def anonymise(snapshots: Sequence[snapshot_pb2.Snapshot], key: bytes) -> Redacted:
    """Put tokens in place of names in `snapshots`, which stay as they are; tokens follow from `key`."""
    tokens: dict[str, str] = {}

    def token(kind: str, value: str) -> str:
        made = f"{kind}-" + hmac.new(key, f"{kind} {value}".encode(), hashlib.sha256).hexdigest()[:8]
        tokens[made] = value
        return made

    copies = []
    for snapshot in snapshots:
        copy = snapshot_pb2.Snapshot()
        copy.CopyFrom(snapshot)
        copies.append(copy)
    hosts = {name for each in copies for name in (each.meta.host, each.meta.host.partition(".")[0])}
    users = {user for each in copies for texts, *_ in texts_of(each) for text in texts for user in _HOME.findall(text)}
    names = (_words(hosts, "host"), _words(users - hosts, "user"))
    for copy in copies:
        for texts, _, name, put in texts_of(copy):
            if name not in _LEFT:
                changed = [_anonymous(text, names, token) for text in texts]
                if changed != texts:
                    put(changed)
    return Redacted(snapshots=tuple(copies), tokens=tokens)


_Names = tuple[tuple[re.Pattern[str] | None, str], ...]


def _words(names: set[str], kind: str) -> tuple[re.Pattern[str] | None, str]:
    telling = sorted(
        (each for each in names if len(each) >= _LEAST_NAME and each not in _EVERYBODY), key=len, reverse=True
    )
    words = "|".join(re.escape(each) for each in telling)
    return (re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])") if words else None), kind


def _anonymous(text: str, names: _Names, token: Callable[[str, str], str]) -> str:
    text = _PATH.sub(lambda match: _path(match[0], token), text)
    for pattern in (_IPV4, _IPV6):
        text = pattern.sub(lambda match: token("addr", match[0]) if _tells(match[0]) else match[0], text)
    for words, kind in names:
        if words is not None:
            text = words.sub(partial(_named, kind, token), text)
    return _URL_HOST.sub(lambda match: _url_host(match[0], token), text)


def _named(kind: str, token: Callable[[str, str], str], match: re.Match[str]) -> str:
    return token(kind, match[0])


def _url_host(name: str, token: Callable[[str, str], str]) -> str:
    if name in _EVERYBODY or re.fullmatch(r"(?:host|addr)-[0-9a-f]{8}|[\d.]+", name):
        return name
    return token("host", name)


def _path(path: str, token: Callable[[str, str], str]) -> str:
    """Keep what a package installed, and the name of a source file."""
    installed = _INSTALLED.search(path)
    if installed:
        return token("path", path[: installed.start()]) + installed[0]
    directory, _, name = path.rpartition("/")
    return f"{token('path', directory)}/{name}" if name.endswith(".py") else token("path", path)


def _tells(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)
