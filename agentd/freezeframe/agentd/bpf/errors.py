"""Why the recorder cannot be armed here: one class, with what to install or grant."""

from __future__ import annotations

from freezeframe.agentd.errors import AgentError


class BpfError(AgentError):
    """Compiling, loading or attaching a program did not work; `hint` says what mends it."""
