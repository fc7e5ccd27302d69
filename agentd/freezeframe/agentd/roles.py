"""Who may call what: one role per socket, one minimum role per RPC. What is not in the table is denied."""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """Role of a socket; a higher one may do all that a lower one may."""

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


def allowed(role: Role, rpc: str) -> bool:
    """Whether a socket of this role serves that RPC."""
    minimum = MINIMUM_ROLE.get(rpc)
    return minimum is not None and role >= minimum
