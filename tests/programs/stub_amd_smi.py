"""Writes C for a stand-in for libamd_smi.so with two GPUs: `stub_amd_smi.py`, to stdout.

The package `amdsmi` binds every function of the library when it is imported: those that no question is asked through
answer "not supported".
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ANSWERS = r"""
#include <string.h>
#include <stdint.h>
typedef uint32_t u32; typedef uint64_t u64; typedef uint16_t u16;
#define INDEX(h) ((int)((uintptr_t)(h) - 0x100))
int amdsmi_init(u64 flags) { return 0; }
int amdsmi_get_socket_handles(u32 *n, void **h) { *n = 1; if (h) h[0] = (void *)0x10; return 0; }
int amdsmi_get_processor_handles(void *s, u32 *n, void **h) {
    *n = 2; if (h) { h[0] = (void *)0x100; h[1] = (void *)0x101; } return 0; }
int amdsmi_get_gpu_device_uuid(void *h, u32 *n, char *uuid) { strcpy(uuid, "b0ff74a1-0000-1000-80e7-000000000000");
    uuid[35] += INDEX(h); return 0; }
int amdsmi_get_gpu_activity(void *h, u32 *use) { use[0] = 97; use[1] = 12; use[2] = 0xFFFF; return 0; }
int amdsmi_get_gpu_vram_usage(void *h, u32 *mib) { mib[0] = 196592; mib[1] = 1024; return 0; }
int amdsmi_get_temp_metric(void *h, int sensor, int metric, int64_t *t) { *t = 41 + INDEX(h); return 0; }
int amdsmi_get_gpu_total_ecc_count(void *h, u64 *n) { if (INDEX(h)) return 12; n[0] = 7; n[1] = 1; n[2] = 0; return 0; }
"""


def main() -> None:
    """Print the source."""
    # Found, not imported: importing it loads the library.
    spec = importlib.util.find_spec("amdsmi")
    assert spec is not None, "the package amdsmi is not installed"
    assert spec.submodule_search_locations
    wrapper = Path(spec.submodule_search_locations[0], "amdsmi_wrapper.py").read_text(encoding="utf-8")
    bound = sorted(set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", wrapper)))
    others = [name for name in bound if f" {name}(" not in ANSWERS]
    print(ANSWERS)
    print("\n".join(f"int {name}() {{ return 2; }}" for name in others))


if __name__ == "__main__":
    main()
