"""Why the recorder cannot be armed here; it becomes the outcome of the collectors that ask the recorder."""

from __future__ import annotations


class BpfError(Exception):
    """Compiling, loading or attaching a program did not work; `hint` says what to install or grant."""

    def __init__(self, detail: str, hint: str = "") -> None:
        """Keep the sentence and the next step."""
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
