"""GPUs as NVIDIA's management library tells of them.

Every call may hang for as long as the driver does, in a way that no signal ends: workers only, never killed. The
library is loaded from a fixed list of paths that belong to root, so no environment decides what code runs here.
Source: NVIDIA NVML API reference; nvidia-ml-py. Run against a stand-in library only, not yet against a GPU.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pynvml

from freezeframe.agentd.host import Host
from freezeframe.agentd.host.gpu_library import Doing, GpuLibrary, GpuLibraryError, NoGpuLibraryError, trusted
from freezeframe.agentd.host.text import escape
from freezeframe.judge.model import Gpu
from freezeframe.judge.model.host import GpuProcess

_Question = Callable[[Any], dict[str, Any]]

SONAME = "libnvidia-ml.so.1"
# Debian, Red Hat, Arm servers, WSL, the GPU operator's driver container, the device plugin of GKE.
FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/wsl/lib",
    "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "run/nvidia/driver/usr/lib64",
    "usr/local/nvidia/lib64",
    "home/kubernetes/bin/nvidia/lib64",
)
# The GPU or the driver does not have it: absent, and no error.
_ABSENT = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
    }
)
_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
_THROTTLES = (
    (pynvml.nvmlClocksThrottleReasonGpuIdle, "idle"),
    (pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting, "application clocks"),
    (pynvml.nvmlClocksThrottleReasonSwPowerCap, "power cap"),
    (pynvml.nvmlClocksThrottleReasonHwSlowdown, "hardware slowdown"),
    (pynvml.nvmlClocksThrottleReasonSyncBoost, "sync boost"),
    (pynvml.nvmlClocksThrottleReasonSwThermalSlowdown, "software thermal slowdown"),
    (pynvml.nvmlClocksThrottleReasonHwThermalSlowdown, "hardware thermal slowdown"),
    (pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown, "power brake"),
)
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
# A process whose memory the driver does not tell, as in a container.
_NO_VALUE = 0xFFFF_FFFF_FFFF_FFFF
_NVLINKS = 18
_LINK_ERRORS = (
    pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
)


def find_library(host: Host) -> str:
    """Path of the library. Raises NoGpuLibraryError; GpuLibraryError when it may not be trusted."""
    for folder in FOLDERS:
        path = os.path.realpath(host.root / folder / SONAME)
        if trusted(path):
            return path
    raise NoGpuLibraryError("no NVIDIA driver library is installed")


def start(host: Host, doing: Doing) -> GpuLibrary:
    """Load and initialise the library. Raises NoGpuLibraryError; GpuLibraryError when it cannot or may not be used."""
    path = find_library(host)
    doing(f"starting NVML ({path})")
    try:
        # By its path, so that nvidia-ml-py's lookup by name finds it loaded already.
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
    except OSError as error:
        raise GpuLibraryError(f"loading {path}: {error}", "reinstall the NVIDIA driver") from error
    except pynvml.NVMLError as error:
        raise GpuLibraryError(f"starting NVML: {_words(error)}", "nvidia-smi says more") from error
    return GpuLibrary(name="NVML", count=count, read=read_gpu, tool="nvidia-smi", driver="nvrm")


def driver_version() -> str:
    """Version of the driver; empty when it is not told."""
    try:
        return escape(_bytes(pynvml.nvmlSystemGetDriverVersion()), 80)
    except pynvml.NVMLError:
        return ""


class _Lost(Exception):  # noqa: N818 - no error of ours
    """The GPU answers nothing any more."""


def read_gpu(index: int, doing: Doing, *, brief: bool = False) -> Gpu:
    """Ask one GPU everything, or briefly what changes from second to second.

    `doing` is told each question before it is asked. Raises nothing.
    """
    known: dict[str, Any] = {"index": index}
    errors: list[str] = []

    def ask(what: str, question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        doing(what)
        try:
            return question()
        except pynvml.NVMLError as error:
            if error.value in _LOST:
                raise _Lost(_words(error)) from error
            if error.value not in _ABSENT:
                errors.append(f"{what}: {_words(error)}")
        return {}

    try:
        handle = ask("handle", lambda: {"": pynvml.nvmlDeviceGetHandleByIndex(index)}).get("")
        for what, question in (_BRIEF if brief else _QUESTIONS) if handle is not None else ():
            known.update(ask(what, partial(question, handle)))
    except _Lost as lost:
        errors.append(str(lost))
    return Gpu(**known, error="; ".join(errors))


def _rates(it: Any) -> dict[str, Any]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(it)
    return {"utilization_percent": float(rates.gpu), "memory_utilization_percent": float(rates.memory)}


def _memory(it: Any) -> dict[str, Any]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(it)
    return {"memory_used_bytes": float(memory.used), "memory_total_bytes": float(memory.total)}


def _throttles(it: Any) -> dict[str, Any]:
    bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(it)
    return {"throttle_reasons": tuple(name for bit, name in _THROTTLES if bits & bit)}


def _ecc(field: str, kind: int) -> _Question:
    return lambda it: {field: float(pynvml.nvmlDeviceGetTotalEccErrors(it, kind, pynvml.NVML_VOLATILE_ECC))}


def _rows(it: Any) -> dict[str, Any]:
    corrected, uncorrected, pending, failed = pynvml.nvmlDeviceGetRemappedRows(it)
    rows = float(corrected + uncorrected)
    return {"remapped_rows": rows, "remap_pending": bool(pending), "remap_failed": bool(failed)}


def _links(it: Any) -> dict[str, Any]:
    """NVLinks that are there and up, and the errors of all of them."""
    states: list[int] = []
    errors = 0
    for link in range(_NVLINKS):
        try:
            states.append(pynvml.nvmlDeviceGetNvLinkState(it, link))
            errors += sum(pynvml.nvmlDeviceGetNvLinkErrorCounter(it, link, counter) for counter in _LINK_ERRORS)
        except pynvml.NVMLError as error:
            if error.value in _ABSENT:
                break
            raise
    known = {"nvlinks": float(len(states)), "nvlinks_up": float(sum(map(bool, states))), "nvlink_errors": float(errors)}
    return known if states else {}


def _processes(it: Any) -> dict[str, Any]:
    found = []
    for each in pynvml.nvmlDeviceGetComputeRunningProcesses(it):
        memory = None if each.usedGpuMemory in (None, _NO_VALUE) else float(each.usedGpuMemory)
        found.append(GpuProcess(pid=int(each.pid), memory_bytes=memory))
    return {"processes": tuple(found)}


def _text(field: str, question: Callable[[Any], str | bytes]) -> _Question:
    return lambda it: {field: escape(_bytes(question(it)), 96)}


def _number(field: str, question: Callable[..., float], *more: int, factor: float = 1.0) -> _Question:
    return lambda it: {field: float(question(it, *more)) * factor}


def _traffic(field: str, direction: int) -> _Question:
    # KB of the driver are of 1,000 bytes.
    return _number(field, pynvml.nvmlDeviceGetPcieThroughput, direction, factor=1000.0)


_QUESTIONS: tuple[tuple[str, _Question], ...] = (
    ("uuid", _text("uuid", pynvml.nvmlDeviceGetUUID)),
    ("name", _text("name", pynvml.nvmlDeviceGetName)),
    ("PCI address", _text("bus_id", lambda it: pynvml.nvmlDeviceGetPciInfo(it).busId)),
    ("utilisation", _rates),
    ("power", _number("power_watts", pynvml.nvmlDeviceGetPowerUsage, factor=0.001)),
    ("power limit", _number("power_limit_watts", pynvml.nvmlDeviceGetEnforcedPowerLimit, factor=0.001)),
    ("memory", _memory),
    ("SM clock", _number("sm_clock_mhz", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM)),
    ("memory clock", _number("memory_clock_mhz", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM)),
    (
        "temperature",
        _number("temperature_celsius", pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
    ),
    ("throttle reasons", _throttles),
    ("ECC errors", _ecc("ecc_corrected", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)),
    ("ECC errors", _ecc("ecc_uncorrected", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)),
    ("remapped rows", _rows),
    ("NVLinks", _links),
    ("PCIe generation", _number("pcie_generation", pynvml.nvmlDeviceGetCurrPcieLinkGeneration)),
    ("PCIe width", _number("pcie_width", pynvml.nvmlDeviceGetCurrPcieLinkWidth)),
    ("PCIe replays", _number("pcie_replays", pynvml.nvmlDeviceGetPcieReplayCounter)),
    # Each takes the driver 20 ms, over which it counts.
    ("PCIe sent", _traffic("pcie_sent_bytes_per_s", pynvml.NVML_PCIE_UTIL_TX_BYTES)),
    ("PCIe received", _traffic("pcie_received_bytes_per_s", pynvml.NVML_PCIE_UTIL_RX_BYTES)),
    ("MIG mode", lambda it: {"mig": bool(pynvml.nvmlDeviceGetMigMode(it)[0])}),
    ("persistence mode", lambda it: {"persistence": bool(pynvml.nvmlDeviceGetPersistenceMode(it))}),
    (
        "compute mode",
        lambda it: {"compute_mode": _COMPUTE_MODES.get(int(pynvml.nvmlDeviceGetComputeMode(it)), "unknown")},
    ),
    ("processes", _processes),
)


_BRIEF = tuple(each for each in _QUESTIONS if each[0] in ("utilisation", "power"))


def _words(error: pynvml.NVMLError) -> str:
    return f"{error} (NVML {error.value})"


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
