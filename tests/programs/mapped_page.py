"""Maps a page of a file that cannot be read, prints its address, and maps more memory once a line comes in."""

from __future__ import annotations

import mmap
import os
import sys

page = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 4096, prot=mmap.PROT_READ)
with open("/proc/self/maps") as maps:
    print(next(line.split("-")[0] for line in maps if sys.argv[1] in line), flush=True)
sys.stdin.readline()
mmap.mmap(-1, 4096)
