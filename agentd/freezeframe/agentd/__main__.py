"""The composition root: the only place that constructs everything.

`freezeframe-agentd` is the supervisor; it starts this module again as the front, and `launcher` as the launcher.
Without the packages of the [agent] extra it says so in one sentence and exits 69.
"""

from __future__ import annotations

import sys

_EX_UNAVAILABLE = 69


def main() -> None:
    """Entry of the command; exits."""
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


if __name__ == "__main__":
    main()
