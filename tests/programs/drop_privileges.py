"""Drops every privilege, then says what is left, here and in a program started from here, as JSON."""

from __future__ import annotations

import json
import subprocess

from freezeframe.agentd.privileges import drop_all

FIELDS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")


def left(status: str) -> dict[str, str]:
    pairs = (line.split(":\t") for line in status.splitlines() if line.startswith(FIELDS))
    return {name: value.strip() for name, value in pairs}


def main() -> None:
    drop_all()
    with open("/proc/self/status") as file:
        here = left(file.read())
    there = left(subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout)
    print(json.dumps([here, there]))


if __name__ == "__main__":
    main()
