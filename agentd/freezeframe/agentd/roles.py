"""Who may call what: a role per socket or certificate, a minimum role per RPC. What is not in the table is denied."""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """Role of a caller; a higher one may do all that a lower one may."""

    VIEW = 1
    CAPTURE = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        """Name as in configuration, socket and answer."""
        return self.name.lower()

    def served(self) -> tuple[str, ...]:
        """Labels of the roles that a socket of this role serves, lowest first."""
        return tuple(role.label for role in Role if role <= self)


SERVICE = "freezeframe.v1.CaptureService"

MINIMUM_ROLE: dict[str, Role] = {
    "Capture": Role.CAPTURE,
    "ListSnapshots": Role.VIEW,
    "GetSnapshot": Role.VIEW,
    "PinSnapshot": Role.CAPTURE,
    "DeleteSnapshot": Role.ADMIN,
    "GetCapabilities": Role.VIEW,
    "ListSchedules": Role.VIEW,
    "PutSchedule": Role.ADMIN,
    "DeleteSchedule": Role.ADMIN,
    "Watch": Role.VIEW,
}


def allowed(role: Role | None, rpc: str) -> bool:
    """Whether this role may call that RPC; None is whoever has no role."""
    minimum = MINIMUM_ROLE.get(rpc)
    return minimum is not None and role is not None and role >= minimum
