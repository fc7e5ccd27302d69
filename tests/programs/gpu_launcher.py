"""The agent's launcher with a stand-in for the library of NVIDIA or AMD: `gpu_launcher.py FOLDER CONTROL_FD`."""

from __future__ import annotations

import sys

from freezeframe.agentd.host import amd_smi, nvml
from freezeframe.agentd.launcher import main

if __name__ == "__main__":
    nvml.FOLDERS = (sys.argv[1],)
    amd_smi.ROCM = f"{sys.argv[1]}/opt/rocm"
    main(int(sys.argv[2]))
