"""The library of the GPUs of this host, for the collectors that ask them."""

from __future__ import annotations

from freezeframe.agentd.collectors.contract import Report, SkippedError, UnavailableError
from freezeframe.agentd.host import Host, amd_smi, nvml
from freezeframe.agentd.host.gpu_library import GpuLibrary, GpuLibraryError, NoGpuLibraryError


def start_library(host: Host, report: Report) -> GpuLibrary:
    """NVIDIA's where it is installed, else AMD's. Raises SkippedError where there is none, else UnavailableError."""
    for start in (nvml.start, amd_smi.start):
        try:
            return start(host, report.doing)
        except NoGpuLibraryError:
            continue
        except GpuLibraryError as error:
            raise UnavailableError(str(error), error.hint) from error
    raise SkippedError("no driver library of NVIDIA or AMD is installed")
