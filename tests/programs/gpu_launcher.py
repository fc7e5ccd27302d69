"""The agent's launcher, with a folder that has a stand-in for NVIDIA's library: `gpu_launcher.py FOLDER CONTROL_FD`."""

from __future__ import annotations

import sys

from freezeframe.agentd.host import nvml
from freezeframe.agentd.launcher import main

if __name__ == "__main__":
    nvml.FOLDERS = (sys.argv[1],)
    main(int(sys.argv[2]))
