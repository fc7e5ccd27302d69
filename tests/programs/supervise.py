"""A supervisor over two children that tell their surroundings: `python supervise.py DIR`; they write DIR/NAME.json."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from freezeframe.agentd import logs
from freezeframe.agentd.supervisor import ChildSpec, Supervisor, lock

CHILD = Path(__file__).with_name("tell_environment.py")


def main() -> None:
    folder = sys.argv[1]
    held = lock(folder)
    logger, _writer = logs.start("info")
    specs = tuple(
        ChildSpec(name=name, command=(sys.executable, str(CHILD), f"{folder}/{name}.json"))
        for name in ("launcher", "front")
    )
    Supervisor(specs, logger).run()
    os.close(held)


if __name__ == "__main__":
    main()
