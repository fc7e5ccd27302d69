"""The host, its GPUs, its kernel log and its recent history."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """Memory of one process on one GPU."""

    # Process.
    pid: int = 0
    # Memory, bytes.
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU."""

    # NVML index.
    index: int = 0
    # UUID.
    uuid: str = ""
    # Product name.
    name: str = ""
    # Utilisation, percent.
    utilization_percent: float | None = None
    # Power, watts.
    power_watts: float | None = None
    # Power limit, watts.
    power_limit_watts: float | None = None
    # Memory used, bytes.
    memory_used_bytes: float | None = None
    # Memory in all, bytes.
    memory_total_bytes: float | None = None
    # SM clock, MHz.
    sm_clock_mhz: float | None = None
    # Temperature, degrees Celsius.
    temperature_celsius: float | None = None
    # Reasons why clocks are held back.
    throttle_reasons: tuple[str, ...] = ()
    # Processes with memory on it.
    processes: tuple[GpuProcess, ...] = ()
    # Why it could not be read; empty when it was.
    error: str = ""
    # Age of the sample, milliseconds.
    age_ms: float | None = None
    # PCI address.
    bus_id: str = ""
    # Share of time that its memory was read or written, percent.
    memory_utilization_percent: float | None = None
    # Memory clock, MHz.
    memory_clock_mhz: float | None = None
    # Corrected ECC errors since the driver was loaded.
    ecc_corrected: float | None = None
    # Uncorrected ECC errors since the driver was loaded.
    ecc_uncorrected: float | None = None
    # Memory rows that were replaced.
    remapped_rows: float | None = None
    # Whether a row waits for a reset to be replaced.
    remap_pending: bool | None = None
    # Whether replacing a row has failed.
    remap_failed: bool | None = None
    # NVLinks in all.
    nvlinks: float | None = None
    # NVLinks that are up.
    nvlinks_up: float | None = None
    # Replays, recoveries and CRC errors of all its NVLinks.
    nvlink_errors: float | None = None
    # PCIe generation in use.
    pcie_generation: float | None = None
    # PCIe lanes in use.
    pcie_width: float | None = None
    # PCIe replays since the driver was loaded.
    pcie_replays: float | None = None
    # Whether it is cut into instances (MIG).
    mig: bool | None = None
    # Whether the driver stays loaded without users.
    persistence: bool | None = None
    # "default", "exclusive process" and such.
    compute_mode: str = ""
    # Sent over PCIe, bytes per second.
    pcie_sent_bytes_per_s: float | None = None
    # Received over PCIe, bytes per second.
    pcie_received_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvent:
    """One line of the kernel's log that matters."""

    # "xid", "sxid", "oom", "hung_task", "soft_lockup", "mce", "pcie", "disk" or "nic".
    kind: str = ""
    # Age, milliseconds.
    age_ms: float = 0.0
    # The message, escaped.
    text: str = ""
    # Process named in it.
    pid: int | None = None
    # Number of an Xid or SXid.
    code: int | None = None
    # PCI address in it; empty when there is none.
    device: str = ""
    # What the number means; empty when it is not known.
    meaning: str = ""
    # What its vendor says to do; empty when it is not known.
    action: str = ""
    # Whether the device does no more work until that is done.
    fatal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Pressure of one resource: share of time that tasks stalled, percent."""

    # "cpu", "memory" or "io".
    resource: str = ""
    # cgroup path; empty for the host.
    cgroup: str = ""
    # Some tasks stalled, last 10 s.
    some_avg10: float = 0.0
    # All tasks stalled, last 10 s.
    full_avg10: float = 0.0
    # Some tasks stalled, last 60 s.
    some_avg60: float = 0.0
    # All tasks stalled, last 60 s.
    full_avg60: float = 0.0
    # Share of time some tasks stalled between the looks, percent; absent with one look.
    some_window: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem:
    """One file system."""

    # Where it is mounted.
    mount: str = ""
    # Size, bytes.
    size_bytes: float = 0.0
    # Free for ordinary users, bytes.
    available_bytes: float = 0.0
    # Free inodes; absent when the file system has no fixed number.
    free_inodes: float | None = None
    # Why it matters: "state directory", "/dev/shm", "log of pid 4711".
    purpose: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """CPU limit of one cgroup."""

    # cgroup path.
    cgroup: str = ""
    # Processes of the snapshot in it.
    pids: tuple[int, ...] = ()
    # CPUs that the quota grants; absent when there is none.
    quota_cpus: float | None = None
    # Periods throttled between the looks.
    throttled_periods_delta: float | None = None
    # Periods between the looks.
    periods_delta: float | None = None
    # Time throttled between the looks, milliseconds.
    throttled_ms_delta: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """State of the host."""

    # Kernel release.
    kernel: str = ""
    # Online CPUs.
    cpus: int = 0
    # Load over 1, 5 and 15 minutes.
    load: tuple[float, ...] = ()
    # Memory in all, bytes.
    memory_total_bytes: float = 0.0
    # Memory available, bytes.
    memory_available_bytes: float = 0.0
    # Uptime, milliseconds.
    uptime_ms: float = 0.0
    # Pressure stall information.
    pressure: tuple[Pressure, ...] = ()
    # File systems that matter: state directory, logs, shm.
    filesystems: tuple[Filesystem, ...] = ()
    # Kernel lockdown: "none", "integrity", "confidentiality"; empty when unknown.
    lockdown: str = ""
    # Clock state: "synchronised", "unsynchronised"; empty when unknown.
    clock: str = ""
    # Driver and library versions, such as nvidia.
    versions: tuple[tuple[str, str], ...] = ()
    # Distribution.
    distribution: str = ""
    # Machine architecture.
    architecture: str = ""
    # CPU limits of cgroups of watched processes that were throttled.
    throttles: tuple[Throttle, ...] = ()
    # OOM kills since boot, as the kernel counts them.
    oom_kills: float | None = None
    # OOM kills between the looks.
    oom_kills_delta: float | None = None
    # Swap used, bytes.
    swap_used_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of samples, oldest first."""

    # What is sampled: "answer bytes", "answer events", "request bytes" (per second), "requests" (in flight), "cpu"
    # (percent of one), "running threads", "blocked threads", "pressure" (percent), "gauge", "tokens" (per second),
    # "gpu use" (percent), "gpu power" (watts), "kernel" (events), "path" (what triggers are evaluated on, by name).
    kind: str = ""
    # Address of a client or server on another host, resource of a pressure, name of a gauge or counter, a GPU, what the
    # kernel told; empty otherwise.
    subject: str = ""
    # Values; NaN where there is none.
    values: tuple[float, ...] = ()
    # Age of the last sample that was not 0, milliseconds.
    last_nonzero_age_ms: float | None = None
    # The process; of an edge the server. Absent when it is on another host, or for the host.
    pid: int | None = None
    # The client of an edge; absent when it is on another host.
    peer_pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One-second samples before the capture."""

    # Series.
    series: tuple[Series, ...] = ()
    # Time between samples, milliseconds.
    interval_ms: float = 0.0
