"""Errors of the agent that a caller sees.

AgentError
├── BadRequestError        the request asks for something that cannot be
├── UnknownCollectorError  --only or --skip names no collector
├── BusyError              queue full or rate limit reached
└── LauncherDownError      no worker can be started now

Each knows the sentence (what was being done, what went wrong) and a hint (what to do next).
"""

from __future__ import annotations


class AgentError(Exception):
    """Root of all; never raised itself."""

    def __init__(self, detail: str, hint: str = "") -> None:
        """Keep the sentence and the next step."""
        super().__init__(detail)
        self.detail = detail
        self.hint = hint


class BadRequestError(AgentError):
    """The request asks for something that cannot be."""


class UnknownCollectorError(BadRequestError):
    """A name that is no collector's."""


class BusyError(AgentError):
    """Too many captures at once, or too often."""


class LauncherDownError(AgentError):
    """The launcher is being restarted: no worker can be started now."""
