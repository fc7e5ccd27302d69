"""`make demo`: the main job on a real router, from a wedge to a verdict.

Starts the bed (the real sglang-router, engine stand-ins, a harness whose 30 requests hang, a stray client that streams
past them), starts the daemon, snaps through its unix socket, prints the verdict, stops all it started.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bed.bed import Bed
from tests.support.daemon import running_daemon


def main() -> int:
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="freezeframe-demo-"))
    print("demo: starting the real sglang-router, two engine stand-ins, a harness and a stray client ...", flush=True)
    with Bed.start(wedge="router-dual-leg", stray=True) as bed, running_daemon() as agent:
        bed.wait_wedged(settled=True)
        print(f"demo: 30 requests hang; asking the daemon: freezeframe snap {agent.address}\n", flush=True)
        command = [sys.executable, "-m", "freezeframe.client", "snap", agent.address]
        done = subprocess.run(command, cwd=folder, check=False, timeout=60)
        router = bed.pids.router
    files = sorted(folder.glob("*.ffz"))
    print(f"\ndemo: the router was pid {router}; all that was started is stopped ({time.monotonic() - begin:.0f} s)")
    if done.returncode not in (0, 4) or not files:
        print(f"demo: snap ended with {done.returncode}; see above", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        return 1
    client = Path(sys.executable).with_name("freezeframe")
    print(f"demo: the snapshot is {files[0]}; go on with\n")
    print(f"    {client} show {files[0]} verdict --why")
    print(f"    {client} show {files[0]} sockets")
    return 0


if __name__ == "__main__":
    sys.exit(main())
