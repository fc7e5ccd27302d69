"""Who is behind a call: a socket of this host, or a certificate. The guard asks here, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from freezeframe.agentd.roles import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One who calls."""

    # For the audit line: "socket view", "tls alice 10.0.0.7:41002".
    who: str
    # Whose rate counts; empty = none is kept: the callers of a unix socket cannot be told from each other.
    rated: str = ""
    # None: nothing is allowed.
    role: Role | None
    # What gives that role, and how to get another, with {role}: "this is the socket of view".
    grant: str
    remedy: str


# By what gRPC calls the peer of a call.
Callers = Callable[[str], Caller]


def of_socket(role: Role) -> Callers:
    """Whoever may open the unix socket of a role: the kernel has asked for the group."""
    caller = Caller(
        who=f"socket {role.label}",
        role=role,
        grant=f"this is the socket of {role.label}",
        remedy="use {role}.sock: become a member of its group",
    )
    return lambda _peer: caller
