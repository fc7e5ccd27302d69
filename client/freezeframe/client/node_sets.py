"""Names of many hosts at once: "gpu-[01-32]", "gpu-[1-4]!gpu-3", and groups of the configuration.

ClusterShell's NodeSet reads them; it is imported only where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from freezeframe.client.errors import HostError

# More pids than so many hosts have would not be told apart (`judge.correlate.joined`).
MOST_HOSTS = 1000
# Brackets of an IPv6 address have colons.
_RANGE = re.compile(r"\[[\d,/-]+\]")
# No address and no path has brackets but those.
_BROKEN = re.compile(r"[^:/]*[\[\]][^:/]*")
# What a range may not have: ClusterShell unfolds it.
_HUGE = re.compile(r"\d{7,}")
_SUCH = "such as gpu-[01-32] or gpu-[1-4,7]"


def expand(given: Iterable[str], groups: Iterable[str], known: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Every host once, in the order given, those of groups after the named ones. Raises HostError."""
    found: dict[str, None] = {}
    for each in given:
        found.update(dict.fromkeys(nodes(each)))
    for group in groups:
        if group not in known:
            names = ", ".join(sorted(known)) or "none yet"
            raise HostError(f"there is no group {group} (known: {names})", "name it in the configuration, in [groups]")
        if not known[group]:
            raise HostError(f"the group {group} has no host", "name some in the configuration, in [groups]")
        for each in known[group]:
            found.update(dict.fromkeys(nodes(each)))
    if len(found) > MOST_HOSTS:
        raise _too_many(f"{len(found):,} hosts are")
    return tuple(found)


def nodes(name: str) -> tuple[str, ...]:
    """Every host that a name stands for. Raises HostError."""
    ranges = _RANGE.findall(name)
    if not ranges:
        if _BROKEN.fullmatch(name):
            raise HostError(f"{name} is no set of hosts", _SUCH)
        return (name,)
    if any(_HUGE.search(each) for each in ranges):
        raise _too_many(f"{name} is")
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException  # noqa: PLC0415 - as said above

    try:
        found = NodeSet(name, resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        raise HostError(f"{name} is no set of hosts: {error}", _SUCH) from error
    if len(found) > MOST_HOSTS:
        raise _too_many(f"{name} is {len(found):,} hosts,")
    if not found:
        raise HostError(f"{name} is no host at all", _SUCH)
    return tuple(str(node) for node in found)


def _too_many(what: str) -> HostError:
    return HostError(f"{what} too many: one capture takes {MOST_HOSTS:,} hosts", "capture them in parts")
