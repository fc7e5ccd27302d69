"""Errors that end a command: one class per cause, each with its exit code and the next step.

ClientError
├── HostError               2  a HOST that is no host this version can reach
├── ConfigError             2  a configuration file that cannot be used
├── BadRequestError         2  the agent says that the request asks for what cannot be
├── McpExtraMissingError    2  the packages of the MCP server are not installed
├── ExportExtraMissingError 2  the packages of an export are not installed
├── RedactMapError          2  a map of a redaction that cannot be read
├── NotComparableError      2  two snapshots that have nothing in common
├── UnknownHostError        2  a host that is not in the file
├── TooManyHostsError       2  a file of more hosts than the command can take
├── AgentError              3  no answer from an agent
│   ├── AgentNotThereError        nothing listens
│   ├── NoRouteError              the host is not reached at all
│   ├── CertificateError          a certificate, this user's or the agent's, that does not do
│   ├── SocketPermissionError     the socket may not be opened by this user
│   ├── SocketOwnerError          the socket belongs to somebody else than root or this user
│   ├── ForwardingError           the program that forwards the agent's socket (ssh, kubectl) did not get there
│   ├── AgentExtraMissingError    a private agent is wanted, its packages are not installed
│   ├── PrivateAgentError         a private agent did not start
│   ├── AgentVersionError         the agent does not know this call
│   ├── NotAnAgentError           something else answers on the socket
│   ├── DeadlineError             no answer in time
│   ├── AgentDiedError            the agent ended before its answer did
│   ├── RefusedError              the agent's policy says no
│   ├── BusyError                 too many captures at once, or too often
│   ├── AgentFaultError           the agent could not do it
│   ├── UnknownSnapshotError      no snapshot of that name
│   ├── UnknownScheduleError      no schedule of that name
│   ├── NoSnapshotError           none of several hosts brought a snapshot
│   └── SnapshotPinnedError       a pinned snapshot is not deleted
├── SaveError               4  captured, but the file could not be written
└── FileError               5  bytes that cannot be shown
    ├── NotASnapshotError         no .ffz file
    ├── NewerFormatError          written by a newer version
    ├── DamagedFileError          nothing of it is whole
    ├── DigestError               changed on the way
    └── NothingToExportError      nothing of that kind is in it
"""

from __future__ import annotations

from typing import ClassVar


class ClientError(Exception):
    """Root of all; never raised itself."""

    exit_code: ClassVar[int] = 1

    def __init__(self, sentence: str, hint: str = "", words: tuple[str, ...] = ()) -> None:
        """Keep the sentence (what was being done, what went wrong), the next step, and another program's own lines."""
        super().__init__(sentence)
        self.hint = hint
        self.words = words


class HostError(ClientError):
    """A HOST that is no host this version can reach."""

    exit_code = 2


class ConfigError(ClientError):
    """A configuration file that cannot be used."""

    exit_code = 2


class BadRequestError(ClientError):
    """The agent says that the request asks for what cannot be."""

    exit_code = 2


class McpExtraMissingError(ClientError):
    """The packages of the MCP server are not installed."""

    exit_code = 2


class ExportExtraMissingError(ClientError):
    """The packages of an export are not installed."""

    exit_code = 2


class RedactMapError(ClientError):
    """A map of a redaction that cannot be read."""

    exit_code = 2


class NotComparableError(ClientError):
    """Two snapshots that have nothing in common."""

    exit_code = 2


class UnknownHostError(ClientError):
    """A host that is not in the file."""

    exit_code = 2


class TooManyHostsError(ClientError):
    """A file of more hosts than the command can take."""

    exit_code = 2


class AgentError(ClientError):
    """No answer from an agent."""

    exit_code = 3


class AgentNotThereError(AgentError):
    """Nothing listens."""


class NoRouteError(AgentError):
    """The host is not reached at all."""


class CertificateError(AgentError):
    """A certificate, this user's or the agent's, that does not do."""


class SocketPermissionError(AgentError):
    """The socket may not be opened by this user."""


class SocketOwnerError(AgentError):
    """The socket belongs to somebody else than root or this user."""


class ForwardingError(AgentError):
    """The program that forwards the agent's socket (ssh, kubectl) did not get there."""


class AgentExtraMissingError(AgentError):
    """A private agent is wanted, its packages are not installed."""


class PrivateAgentError(AgentError):
    """A private agent did not start."""


class AgentVersionError(AgentError):
    """The agent does not know this call."""


class NotAnAgentError(AgentError):
    """Something else answers on the socket."""


class DeadlineError(AgentError):
    """No answer in time."""


class AgentDiedError(AgentError):
    """The agent ended before its answer did."""


class RefusedError(AgentError):
    """The agent's policy says no."""


class BusyError(AgentError):
    """Too many captures at once, or too often."""


class AgentFaultError(AgentError):
    """The agent could not do it."""


class NoSnapshotError(AgentError):
    """None of several hosts brought a snapshot."""


class UnknownScheduleError(AgentError):
    """No schedule of that name."""


class UnknownSnapshotError(AgentError):
    """No snapshot of that name."""


class SnapshotPinnedError(AgentError):
    """A pinned snapshot is not deleted."""


class SaveError(ClientError):
    """Captured, but the file could not be written."""

    exit_code = 4


class FileError(ClientError):
    """Bytes that cannot be shown."""

    exit_code = 5


class NotASnapshotError(FileError):
    """No .ffz file."""


class NewerFormatError(FileError):
    """Written by a newer version."""


class DamagedFileError(FileError):
    """Nothing of it is whole."""


class DigestError(FileError):
    """Changed on the way."""


class NothingToExportError(FileError):
    """Nothing of that kind is in it."""
