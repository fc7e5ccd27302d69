"""The composition root: the only place that constructs everything.

`freezeframe-agentd` is the supervisor; it starts this module again as the front, and `launcher` as the launcher.
Without the packages of the [agent] extra it says so in one sentence and exits 69.
"""

from __future__ import annotations

import os
import sys

_EX_UNAVAILABLE = 69


def main() -> None:
    """Entry of the command; exits."""
    _open_closed_streams()
    try:
        from freezeframe.agentd import daemon  # noqa: PLC0415 - after this point the [agent] extra is needed
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("freezeframe"):
            raise
        print(  # noqa: T201 - a command's last word
            f"freezeframe-agentd: {error.name} is not installed: pip install 'freezeframe[agent]'", file=sys.stderr
        )
        sys.exit(_EX_UNAVAILABLE)
    daemon.command()


def _open_closed_streams() -> None:
    """Lead standard streams that came closed to /dev/null: else a socket of ours would be one, and get the log."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free one: that which was closed.
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, True)
            setattr(sys, name, open(opened, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


if __name__ == "__main__":
    main()
