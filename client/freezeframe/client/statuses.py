"""What a status of gRPC means to the user: one error with its hint.

The agent's reason (ErrorInfo, serialized in the trailing metadata `freezeframe-error-bin`) counts before the status:

    BAD_REQUEST, UNKNOWN_COLLECTOR  BadRequestError        UNKNOWN_SNAPSHOT   UnknownSnapshotError
    ROLE_REQUIRED                   RefusedError           SNAPSHOT_PINNED    SnapshotPinnedError
    BUSY                            BusyError              SNAPSHOT_DAMAGED   DamagedFileError
    UNKNOWN_SCHEDULE                UnknownScheduleError
    NOT_SUPPORTED                   AgentVersionError      STORE_FAILED, LAUNCHER_DOWN, INTERNAL  AgentFaultError
"""

from __future__ import annotations

import grpc

from freezeframe.client import errors
from freezeframe.v1 import service_pb2

METADATA_KEY = "freezeframe-error-bin"

_Reason = service_pb2.ErrorInfo.Reason
_Code = grpc.StatusCode

REASONS: dict[_Reason.ValueType, type[errors.ClientError]] = {
    _Reason.BAD_REQUEST: errors.BadRequestError,
    _Reason.UNKNOWN_COLLECTOR: errors.BadRequestError,
    _Reason.UNKNOWN_SNAPSHOT: errors.UnknownSnapshotError,
    _Reason.UNKNOWN_SCHEDULE: errors.UnknownScheduleError,
    _Reason.ROLE_REQUIRED: errors.RefusedError,
    _Reason.BUSY: errors.BusyError,
    _Reason.NOT_SUPPORTED: errors.AgentVersionError,
    _Reason.SNAPSHOT_PINNED: errors.SnapshotPinnedError,
    _Reason.STORE_FAILED: errors.AgentFaultError,
    _Reason.LAUNCHER_DOWN: errors.AgentFaultError,
    _Reason.INTERNAL: errors.AgentFaultError,
    _Reason.SNAPSHOT_DAMAGED: errors.DamagedFileError,
}

# Class, sentence and hint where the agent gave no reason.
STATUSES: dict[grpc.StatusCode, tuple[type[errors.ClientError], str, str]] = {
    _Code.CANCELLED: (errors.AgentDiedError, "the call was cancelled by the other side", ""),
    _Code.UNKNOWN: (errors.AgentFaultError, "the agent failed and does not say how", "read the agent's log"),
    _Code.INVALID_ARGUMENT: (errors.BadRequestError, "the agent does not accept the request", ""),
    _Code.DEADLINE_EXCEEDED: (
        errors.DeadlineError,
        "no answer in time",
        "give it longer with --deadline, or look at the agent: systemctl status freezeframe-agentd",
    ),
    _Code.NOT_FOUND: (errors.UnknownSnapshotError, "the agent has no such snapshot", "see: freezeframe list"),
    _Code.ALREADY_EXISTS: (errors.AgentFaultError, "the agent has it already", ""),
    _Code.PERMISSION_DENIED: (errors.RefusedError, "the agent's policy refuses it", "ask who runs the agent"),
    _Code.RESOURCE_EXHAUSTED: (errors.BusyError, "the agent has too much to do", "try again in some seconds"),
    _Code.FAILED_PRECONDITION: (errors.AgentFaultError, "the agent cannot do it in its present state", ""),
    _Code.ABORTED: (errors.AgentFaultError, "the agent gave it up", "try again"),
    _Code.OUT_OF_RANGE: (errors.BadRequestError, "the agent does not accept a value of the request", ""),
    _Code.UNIMPLEMENTED: (
        errors.AgentVersionError,
        "the agent does not know this call: it and this client are of different versions",
        "install the same version on both sides: pip install --upgrade freezeframe",
    ),
    _Code.INTERNAL: (errors.AgentFaultError, "the agent or the connection failed", "read the agent's log"),
    _Code.UNAVAILABLE: (
        errors.AgentDiedError,
        "the agent ended or does not answer",
        "look at it: systemctl status freezeframe-agentd",
    ),
    _Code.DATA_LOSS: (errors.DamagedFileError, "the agent's snapshot is damaged", ""),
    _Code.UNAUTHENTICATED: (errors.RefusedError, "the agent wants to know who asks", ""),
}


def translate(error: grpc.Call, doing: str, *, began: bool = False) -> errors.ClientError:
    """Turn a status into the error that says the same."""
    info = _error_info(error)
    code = error.code()
    kind, sentence, hint = STATUSES.get(code, (errors.AgentFaultError, f"the agent says {code}", ""))
    if info is not None:
        kind = REASONS.get(info.reason, kind)
        return kind(f"{doing}: {info.detail or sentence}", info.hint or hint)
    if began and kind is errors.AgentDiedError:
        sentence = "the agent ended in the middle of its answer"
        hint = "its supervisor starts it again within seconds: try again, then read its log"
    details = (error.details() or "") if code in (_Code.UNKNOWN, _Code.INTERNAL, _Code.INVALID_ARGUMENT) else ""
    return kind(f"{doing}: {sentence}" + (f" ({details})" if details else ""), hint)


def _error_info(error: grpc.Call) -> service_pb2.ErrorInfo | None:
    for key, value in error.trailing_metadata() or ():
        if key == METADATA_KEY and isinstance(value, bytes):
            try:
                return service_pb2.ErrorInfo.FromString(value)
            except ValueError:  # protobuf's DecodeError is one
                return None
    return None
