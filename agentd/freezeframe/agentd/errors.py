"""Errors of the agent.

AgentError                   a caller sees it, as a status with an ErrorInfo (`statuses.py` has the table)
├── BadRequestError          the request asks for something that cannot be
│   └── UnknownCollectorError  --only or --skip names no collector
├── RoleRequiredError        this socket's role may not do that
├── NotSupportedError        this agent cannot do that yet
├── BusyError                queue full or rate limit reached
├── LauncherDownError        no worker can be started now
├── UnknownSnapshotError     no snapshot of that id is kept
├── UnknownScheduleError     no schedule has that name
├── SnapshotPinnedError      a pinned snapshot is not deleted
├── SnapshotDamagedError     a kept file cannot be read
└── StoreFailedError         the disk refused, or does not answer

StartError                   the daemon cannot start; whoever starts it sees it
├── ConfigError              the configuration file is wrong
├── SocketInUseError         another agent answers on the socket
├── SocketRefusedError       a path of ours is not ours
└── CertificateError         a certificate cannot be made

Each knows the sentence (what was being done, what went wrong) and a hint (what to do next).
"""

from __future__ import annotations


class AgentError(Exception):
    """Root of all that a caller sees; never raised itself."""

    def __init__(self, detail: str, hint: str = "") -> None:
        """Keep the sentence and the next step."""
        super().__init__(detail)
        self.detail = detail
        self.hint = hint


class BadRequestError(AgentError):
    """The request asks for something that cannot be."""


class UnknownCollectorError(BadRequestError):
    """A name that is no collector's."""


class RoleRequiredError(AgentError):
    """This socket's role may not do that."""


class NotSupportedError(AgentError):
    """This agent cannot do that."""


class BusyError(AgentError):
    """Too many captures at once, or too often."""


class LauncherDownError(AgentError):
    """The launcher is being restarted: no worker can be started now."""


class UnknownSnapshotError(AgentError):
    """No snapshot of that id is kept."""


class UnknownScheduleError(AgentError):
    """No schedule has that name."""


class SnapshotPinnedError(AgentError):
    """The snapshot is pinned, so it is not deleted."""


class SnapshotDamagedError(AgentError):
    """The kept file cannot be read."""


class StoreFailedError(AgentError):
    """The disk refused, or does not answer."""


class StartError(Exception):
    """Root of all that keeps the daemon from starting; never raised itself."""

    def __init__(self, detail: str, hint: str = "") -> None:
        """Keep the sentence and the next step."""
        super().__init__(detail)
        self.detail = detail
        self.hint = hint


class ConfigError(StartError):
    """The configuration is wrong."""


class SocketInUseError(StartError):
    """Another agent answers on the socket."""


class SocketRefusedError(StartError):
    """A path that should be ours is a link, is owned by somebody else, or is no socket."""


class CertificateError(StartError):
    """A certificate cannot be made."""
