"""Errors of the agent as statuses: one table. The ErrorInfo travels in the trailing metadata."""

from __future__ import annotations

import grpc

from freezeframe.agentd import errors
from freezeframe.v1 import service_pb2

METADATA_KEY = "freezeframe-error-bin"

_Reason = service_pb2.ErrorInfo.Reason
# Metadata of a call is bounded by 8 KiB in all.
_TEXT_CHARACTERS = 1000

# Nearest class in the error's ancestry counts.
TABLE: dict[type[Exception], tuple[grpc.StatusCode, _Reason.ValueType]] = {
    errors.BadRequestError: (grpc.StatusCode.INVALID_ARGUMENT, _Reason.BAD_REQUEST),
    errors.UnknownCollectorError: (grpc.StatusCode.INVALID_ARGUMENT, _Reason.UNKNOWN_COLLECTOR),
    errors.RoleRequiredError: (grpc.StatusCode.PERMISSION_DENIED, _Reason.ROLE_REQUIRED),
    errors.NotSupportedError: (grpc.StatusCode.UNIMPLEMENTED, _Reason.NOT_SUPPORTED),
    errors.BusyError: (grpc.StatusCode.RESOURCE_EXHAUSTED, _Reason.BUSY),
    errors.LauncherDownError: (grpc.StatusCode.UNAVAILABLE, _Reason.LAUNCHER_DOWN),
    errors.UnknownSnapshotError: (grpc.StatusCode.NOT_FOUND, _Reason.UNKNOWN_SNAPSHOT),
    errors.UnknownScheduleError: (grpc.StatusCode.NOT_FOUND, _Reason.UNKNOWN_SCHEDULE),
    errors.SnapshotPinnedError: (grpc.StatusCode.FAILED_PRECONDITION, _Reason.SNAPSHOT_PINNED),
    errors.SnapshotDamagedError: (grpc.StatusCode.DATA_LOSS, _Reason.SNAPSHOT_DAMAGED),
    errors.StoreFailedError: (grpc.StatusCode.ABORTED, _Reason.STORE_FAILED),
}


def status_of(error: Exception) -> tuple[grpc.StatusCode, service_pb2.ErrorInfo]:
    """Give status and ErrorInfo of an error; one that is not in the table is INTERNAL and tells nothing of itself."""
    for kind in type(error).__mro__:
        if kind in TABLE and isinstance(error, errors.AgentError):
            code, reason = TABLE[kind]
            return code, service_pb2.ErrorInfo(
                reason=reason, detail=error.detail[:_TEXT_CHARACTERS], hint=error.hint[:_TEXT_CHARACTERS]
            )
    return grpc.StatusCode.INTERNAL, service_pb2.ErrorInfo(
        reason=_Reason.INTERNAL,
        detail="the agent failed at this call; its log has the traceback",
        hint="journalctl -u freezeframe-agentd -n 50, and please report it",
    )
