"""`python hold_programs.py DIRECTORY`: loads all that the recorder loads, says so, holds it."""

from __future__ import annotations

import signal
import sys

from freezeframe.agentd.bpf import loader, programs


def main() -> None:
    held = [loader.load(each, sys.argv[1]) for each in (programs.LEDGER, programs.SOCKETS, programs.URING)]
    print("ready", flush=True)
    signal.pause()
    del held


if __name__ == "__main__":
    main()
