"""Gives one pid to a second process, again and again. Run under `unshare -pf --mount-proc`.

Prints as JSON how often, how often the start times were equal, and how often `Held` told the two processes apart.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from freezeframe.agentd.jobs import Target
from freezeframe.agentd.pidfds import Held

PID = 5000


def start_at(pid: int) -> int:
    """Fork until the child has this pid."""
    for _ in range(50):
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(pid - 1))
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        if child == pid:
            return start_ticks(pid)
        end(child)
    raise SystemExit("the pid was never free")


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def start_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[19])


def main() -> None:
    rounds, same_ticks, told_apart = int(sys.argv[1]), 0, 0
    for _ in range(rounds):
        first = start_at(PID)
        held = Held([Target(pid=PID, start_ticks=first)])
        before = held.exited()
        end(PID)
        second = start_at(PID)
        told_apart += (before, held.exited()) == (frozenset(), frozenset({PID}))
        same_ticks += first == second
        held.close()
        end(PID)
    print(json.dumps({"rounds": rounds, "same_ticks": same_ticks, "told_apart": told_apart}))


if __name__ == "__main__":
    main()
