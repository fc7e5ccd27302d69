"""GPUs as AMD's management library tells of them, where the package `amdsmi` is installed.

As with NVML: every call may hang with the driver, so workers only; the library is loaded from one path that belongs to
root. Source: AMD SMI Python API reference, release 7. Run against a stand-in library only, never against a GPU.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from freezeframe.agentd.host import Host
from freezeframe.agentd.host.gpu_library import Doing, GpuLibrary, GpuLibraryError, NoGpuLibraryError, trusted
from freezeframe.agentd.host.text import escape
from freezeframe.judge.model import Gpu
from freezeframe.judge.model.host import GpuProcess

_Question = Callable[[ModuleType, Any], dict[str, Any]]

ROCM = "opt/rocm"
SONAME = "libamd_smi.so"
# The GPU or the driver does not have it: absent, and no error. INVAL, NOT_SUPPORTED, NOT_YET_IMPLEMENTED, NO_DATA.
_ABSENT = frozenset({1, 2, 3, 40})


def start(host: Host, doing: Doing) -> GpuLibrary:
    """Load and initialise the library. Raises NoGpuLibraryError; GpuLibraryError when it cannot or may not be used."""
    folder = host.root / ROCM
    path = os.path.realpath(folder / "lib" / SONAME)
    if not trusted(path):
        raise NoGpuLibraryError("no AMD driver library is installed")
    doing(f"starting AMD SMI ({path})")
    # The package looks here first, and prints to stdout when it finds nothing.
    os.environ["ROCM_HOME"] = str(folder)
    try:
        amdsmi = importlib.import_module("amdsmi")
    except ImportError as error:
        raise GpuLibraryError(
            f"{path} is there, and the Python package that reads it is not",
            "install 'freezeframe[agent,amd]' beside the agent",
        ) from error
    except (OSError, AttributeError, KeyError) as error:
        raise GpuLibraryError(f"loading {path}: {error}", "install the amdsmi of this ROCm release") from error
    try:
        amdsmi.amdsmi_init()
        handles = amdsmi.amdsmi_get_processor_handles()
    except amdsmi.AmdSmiException as error:
        raise GpuLibraryError(f"starting AMD SMI: {_words(error)}", "amd-smi says more") from error
    return GpuLibrary(
        name="AMD SMI", count=len(handles), read=partial(_read, amdsmi, handles), tool="amd-smi", driver="amdgpu"
    )


def _read(amdsmi: ModuleType, handles: list[Any], index: int, doing: Doing, *, brief: bool = False) -> Gpu:
    known: dict[str, Any] = {"index": index}
    errors: list[str] = []
    for what, question in _BRIEF if brief else _QUESTIONS:
        doing(what)
        try:
            answer = question(amdsmi, handles[index])
        except amdsmi.AmdSmiLibraryException as error:
            if error.get_error_code() not in _ABSENT:
                errors.append(f"{what}: {_words(error)}")
        else:
            # What a GPU does not have is "N/A".
            known.update({field: value for field, value in answer.items() if value is not None})
    return Gpu(**known, error="; ".join(errors))


def _number(value: Any, factor: float = 1.0) -> float | None:
    return float(value) * factor if isinstance(value, int | float) else None


def _rates(amdsmi: ModuleType, it: Any) -> dict[str, Any]:
    activity = amdsmi.amdsmi_get_gpu_activity(it)
    return {
        "utilization_percent": _number(activity["gfx_activity"]),
        "memory_utilization_percent": _number(activity["umc_activity"]),
    }


def _power(amdsmi: ModuleType, it: Any) -> dict[str, Any]:
    power = amdsmi.amdsmi_get_power_info(it)
    # Accelerators tell the present power, cards the average.
    now = _number(power["current_socket_power"])
    return {"power_watts": now if now is not None else _number(power["average_socket_power"])}


def _power_limit(amdsmi: ModuleType, it: Any) -> dict[str, Any]:
    return {"power_limit_watts": _number(amdsmi.amdsmi_get_power_cap_info(it)["power_cap"], 1e-6)}


def _memory(amdsmi: ModuleType, it: Any) -> dict[str, Any]:
    memory = amdsmi.amdsmi_get_gpu_vram_usage(it)
    return {
        "memory_used_bytes": _number(memory["vram_used"], 1 << 20),
        "memory_total_bytes": _number(memory["vram_total"], 1 << 20),
    }


def _clock(field: str, kind: str) -> _Question:
    return lambda amdsmi, it: {
        field: _number(amdsmi.amdsmi_get_clock_info(it, getattr(amdsmi.AmdSmiClkType, kind))["clk"])
    }


def _temperature(amdsmi: ModuleType, it: Any) -> dict[str, Any]:
    sensor, metric = amdsmi.AmdSmiTemperatureType.HOTSPOT, amdsmi.AmdSmiTemperatureMetric.CURRENT
    return {"temperature_celsius": _number(amdsmi.amdsmi_get_temp_metric(it, sensor, metric))}


def _ecc(amdsmi: ModuleType, it: Any) -> dict[str, Any]:
    count = amdsmi.amdsmi_get_gpu_total_ecc_count(it)
    return {
        "ecc_corrected": _number(count["correctable_count"]),
        "ecc_uncorrected": _number(count["uncorrectable_count"]),
    }


def _pcie(amdsmi: ModuleType, it: Any) -> dict[str, Any]:
    pcie = amdsmi.amdsmi_get_pcie_info(it)
    return {
        "pcie_generation": _number(pcie["pcie_static"]["pcie_interface_version"]),
        "pcie_width": _number(pcie["pcie_metric"]["pcie_width"]),
        "pcie_replays": _number(pcie["pcie_metric"]["pcie_replay_count"]),
    }


def _processes(amdsmi: ModuleType, it: Any) -> dict[str, Any]:
    found = amdsmi.amdsmi_get_gpu_process_list(it)
    return {
        "processes": tuple(
            GpuProcess(pid=int(each["pid"]), memory_bytes=float(each["memory_usage"]["vram_mem"])) for each in found
        )
    }


def _text(field: str, question: Callable[[ModuleType, Any], str]) -> _Question:
    return lambda amdsmi, it: {field: escape(question(amdsmi, it).encode("utf-8", "surrogateescape"), 96)}


_QUESTIONS: tuple[tuple[str, _Question], ...] = (
    ("uuid", _text("uuid", lambda amdsmi, it: amdsmi.amdsmi_get_gpu_device_uuid(it))),
    ("name", _text("name", lambda amdsmi, it: amdsmi.amdsmi_get_gpu_asic_info(it)["market_name"])),
    ("PCI address", _text("bus_id", lambda amdsmi, it: amdsmi.amdsmi_get_gpu_device_bdf(it))),
    ("utilisation", _rates),
    ("power", _power),
    ("power limit", _power_limit),
    ("memory", _memory),
    ("SM clock", _clock("sm_clock_mhz", "GFX")),
    ("memory clock", _clock("memory_clock_mhz", "MEM")),
    ("temperature", _temperature),
    ("ECC errors", _ecc),
    ("PCIe link", _pcie),
    ("processes", _processes),
)
_BRIEF = tuple(each for each in _QUESTIONS if each[0] in ("utilisation", "power"))


def _words(error: Any) -> str:
    return str(error.get_error_info()) if hasattr(error, "get_error_info") else str(error)
