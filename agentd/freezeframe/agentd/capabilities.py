"""What this host lets the agent see, and the command that mends what is missing: the content of `doctor`.

`probe` reads files of the kernel and looks for libraries without importing them. It speaks of the process that calls
it, so it is called where the capabilities are: in a worker of the launcher, not in the front.
"""

from __future__ import annotations

import glob
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from freezeframe.agentd.config import MetricsEndpoint, StoreLimits
from freezeframe.agentd.errors import AgentError
from freezeframe.agentd.host import Host, nvml
from freezeframe.agentd.host.gpu_library import GpuLibraryError, NoGpuLibraryError
from freezeframe.agentd.store import Condition, Copying
from freezeframe.judge.model import Outcome


class State(Enum):
    """As in freezeframe.v1.Capability."""

    PRESENT = 1
    LIMITED = 2
    ABSENT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One thing that the agent can or cannot do."""

    name: str
    state: State
    # What was found.
    detail: str = ""
    # The command or grant that mends it; empty when nothing is to mend.
    hint: str = ""


# Bit, name, what it is needed for. Numbers are those of linux/capability.h.
_BITS = (
    (39, "CAP_BPF", "the recorder"),
    (38, "CAP_PERFMON", "the recorder"),
    (19, "CAP_SYS_PTRACE", "stacks, sockets' owners and syscalls of other users' processes"),
    (2, "CAP_DAC_READ_SEARCH", "file descriptors and logs of other users' processes"),
    (34, "CAP_SYSLOG", "the kernel's log"),
    (21, "CAP_SYS_ADMIN", "kernel stacks; ages, bytes and metrics in other network namespaces"),
)
_OPTIONAL = "CAP_SYS_ADMIN"
# Room for one snapshot of a big host.
_ROOM_BYTES = 20 * 1024 * 1024
_DROP_INS = "/etc/systemd/system/freezeframe-agentd.service.d"
_RESTART = "sudo systemctl daemon-reload && sudo systemctl restart freezeframe-agentd"
# Level of Yama from which nobody may read another process's memory, whatever they hold.
_YAMA_NOBODY = 3

# As in `bpf.compiler`.
_DISTRIBUTION = ("/usr/lib/python3/dist-packages", *sorted(glob.glob("/usr/lib/python3.*/site-packages")))


def probe(
    *,
    root: str = "/",
    euid: int | None = None,
    version: Callable[[str], str] = importlib.metadata.version,
    bcc_paths: Sequence[str] = _DISTRIBUTION,
) -> tuple[Capability, ...]:
    """Look at the host below `root`. Never raises: what cannot be read is a capability that is LIMITED or ABSENT."""
    euid = os.geteuid() if euid is None else euid
    bits = _capability_bits(_read(root, "proc/self/status"))
    return (
        _root(euid, bits),
        *bits,
        _py_spy(version),
        _kernel(_read(root, "proc/sys/kernel/osrelease")),
        _tracefs(root),
        _btf(root),
        _bcc(bcc_paths),
        _libdw(root),
        _journal(root),
        _conntrack(root),
        _yama(_read(root, "proc/sys/kernel/yama/ptrace_scope")),
        _lockdown(_read(root, "sys/kernel/security/lockdown")),
    )


def recorder(outcome: Outcome) -> Capability:
    """Say whether the recorder watches, from the outcome of a question to it."""
    if outcome.status is Outcome.Status.OK:
        return Capability(name="recorder", state=State.PRESENT, detail="armed: requests are seen as they begin")
    detail = outcome.detail or "it gives no answer"
    return Capability(name="recorder", state=State.ABSENT, detail=detail, hint=outcome.hint or "see the agent's log")


def kernel_stacks(probed: Sequence[Capability], helper: str) -> Capability:
    """Say whether kernel stacks are read, and by which of the two ways."""
    name = "kernel stacks"
    if any(each.name == _OPTIONAL and each.state is State.PRESENT for each in probed):
        return Capability(name=name, state=State.PRESENT, detail="read by the agent, which has CAP_SYS_ADMIN")
    if os.path.exists(helper):
        return Capability(name=name, state=State.PRESENT, detail=f"opened by the helper at {helper}")
    return Capability(
        name=name,
        state=State.LIMITED,
        detail=f"not read: the agent has no CAP_SYS_ADMIN, and no helper listens at {helper}",
        hint="sudo systemctl enable --now freezeframe-kernel-stacks",
    )


def gpus(host: Host) -> Capability:
    """Say whether NVIDIA's library is there; it is not loaded."""
    try:
        return Capability(name="NVML", state=State.PRESENT, detail=nvml.find_library(host))
    except NoGpuLibraryError as error:
        return Capability(name="NVML", state=State.ABSENT, detail=str(error))
    except GpuLibraryError as error:
        return Capability(name="NVML", state=State.ABSENT, detail=str(error), hint=error.hint)


def schedules(count: int, damage: Sequence[str]) -> Capability:
    """Say how much is captured unasked, and which schedules were left out."""
    if not damage:
        return Capability(name="schedules", state=State.PRESENT, detail=f"{count}" if count else "none")
    more = f"; {len(damage) - 1} more" if len(damage) > 1 else ""
    return Capability(
        name="schedules",
        state=State.LIMITED,
        detail=f"left out: {damage[0]}{more}",
        hint="remove what is damaged and add it again: freezeframe schedule add; then restart the agent",
    )


def metrics(endpoint: MetricsEndpoint, problems: Sequence[str]) -> Capability:
    """Say whether Prometheus can ask."""
    if problems:
        hint = "set metrics.port and metrics.address to what this host has free, or end what has it"
        return Capability(name="metrics", state=State.ABSENT, detail=problems[0], hint=hint)
    host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
    detail = f"http://{host}:{endpoint.port}/metrics" if endpoint.port else "off: metrics.port is 0"
    return Capability(name="metrics", state=State.PRESENT, detail=detail)


def store(condition: Condition | AgentError, limits: StoreLimits) -> Capability:
    """Say whether snapshots are kept, and whether those that are kept are whole."""
    if isinstance(condition, AgentError):
        return Capability(name="store", state=State.ABSENT, detail=condition.detail, hint=condition.hint)
    detail = (
        f"{condition.snapshots} of {limits.max_snapshots} snapshots, {condition.size_bytes >> 20} of "
        f"{limits.max_bytes >> 20} MiB, {condition.pinned} pinned"
    )
    if condition.unchecked:
        detail += f", {condition.unchecked} not checked yet"
    if condition.damaged:
        (snapshot_id, damage), more = condition.damaged[0], len(condition.damaged) - 1
        others = f"; {more} more" if more else ""
        return Capability(
            name="store",
            state=State.LIMITED,
            detail=f"damaged: {snapshot_id}: {damage}{others}; {detail}",
            hint=f"freezeframe get {snapshot_id} saves what is whole; freezeframe rm {snapshot_id}",
        )
    if condition.free_bytes < _ROOM_BYTES:
        detail = f"{condition.free_bytes >> 10} KiB free on its disk: the next snapshot may not be kept; {detail}"
        return Capability(
            name="store", state=State.LIMITED, detail=detail, hint="free space on the disk of the state directory"
        )
    return Capability(name="store", state=State.PRESENT, detail=detail)


def copies(copying: Copying | AgentError, to: str) -> Capability:
    """Say whether kept snapshots get where they are to be copied."""
    if isinstance(copying, AgentError):
        return Capability(name="copy", state=State.ABSENT, detail=copying.detail, hint=copying.hint)
    count = f"{copying.waiting} to copy to {to}, {copying.copied} copied since the agent began"
    if copying.failure is None:
        return Capability(name="copy", state=State.PRESENT, detail=count)
    return Capability(
        name="copy", state=State.LIMITED, detail=f"{copying.failure.detail}; {count}", hint=copying.failure.hint
    )


def _read(root: str, path: str) -> str | None:
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as stream:
            return stream.read(65536)
    except OSError:
        return None


def _readable(root: str, path: str) -> bool:
    """Whether this process can read it; its capabilities count, which access(2) leaves out unless root calls."""
    return os.access(os.path.join(root, path), os.R_OK, effective_ids=True)


def _root(euid: int, bits: Sequence[Capability]) -> Capability:
    if euid == 0:
        return Capability(name="root", state=State.PRESENT, detail="runs as root")
    if all(each.state is State.PRESENT for each in bits if each.name != _OPTIONAL):
        return Capability(
            name="root", state=State.PRESENT, detail=f"runs as uid {euid}, with the capabilities that it needs"
        )
    return Capability(
        name="root",
        state=State.LIMITED,
        detail=f"runs as uid {euid}: without the capabilities below it sees that user's processes only",
        hint="sudo systemctl start freezeframe-agentd, or: sudo freezeframe snap --embedded",
    )


def _grant(name: str) -> str:
    """Give the command that grants a capability to the service."""
    if name == _OPTIONAL:
        file = os.path.join(sysconfig.get_path("data"), "share/freezeframe/systemd/kernel-stacks.conf")
        return f"sudo install -D -m 644 {file} {_DROP_INS}/kernel-stacks.conf && {_RESTART}"
    text = f"[Service]\\nCapabilityBoundingSet={name}\\nAmbientCapabilities={name}\\n"
    return f"printf '{text}' | sudo install -D -m 644 /dev/stdin {_DROP_INS}/{name.lower()}.conf && {_RESTART}"


def _capability_bits(status: str | None) -> list[Capability]:
    match = re.search(r"^CapEff:\s*([0-9a-fA-F]{1,16})$", status or "", re.MULTILINE)
    if match is None:
        detail = "reading CapEff of /proc/self/status: not there"
        return [Capability(name=name, state=State.LIMITED, detail=detail) for _, name, _ in _BITS]
    effective = int(match.group(1), 16)
    found = []
    for bit, name, what in _BITS:
        if effective >> bit & 1:
            found.append(Capability(name=name, state=State.PRESENT))
        else:
            state = State.LIMITED if name == _OPTIONAL else State.ABSENT
            found.append(Capability(name=name, state=state, detail=f"needed for {what}", hint=_grant(name)))
    return found


def _py_spy(version: Callable[[str], str]) -> Capability:
    install = "pip install 'freezeframe[agent]'"
    try:
        found = version("py-spy")
    except importlib.metadata.PackageNotFoundError:
        return Capability(name="py-spy", state=State.ABSENT, detail="not installed: no Python stacks", hint=install)
    path = os.path.join(sysconfig.get_path("scripts"), "py-spy")
    if not os.access(path, os.X_OK):
        return Capability(
            name="py-spy",
            state=State.ABSENT,
            detail=f"{found} is installed, but {path} cannot be executed",
            hint="pip install --force-reinstall py-spy",
        )
    return Capability(name="py-spy", state=State.PRESENT, detail=f"{found} at {path}")


def _kernel(release: str | None) -> Capability:
    if not release:
        return Capability(name="kernel", state=State.LIMITED, detail="reading /proc/sys/kernel/osrelease: not there")
    return Capability(name="kernel", state=State.PRESENT, detail=release.strip())


def _tracefs(root: str) -> Capability:
    for path in ("sys/kernel/tracing", "sys/kernel/debug/tracing"):
        if _readable(root, f"{path}/events"):
            return Capability(name="tracefs", state=State.PRESENT, detail=f"/{path}")
    if os.path.isdir(os.path.join(root, "sys/kernel/tracing")):
        return Capability(
            name="tracefs",
            state=State.LIMITED,
            detail="not mounted: the recorder mounts it for itself where it may (CAP_SYS_ADMIN), "
            "else closes and resets of connections are not traced",
            hint="mount -t tracefs tracefs /sys/kernel/tracing",
        )
    return Capability(
        name="tracefs",
        state=State.ABSENT,
        detail="not mounted, or not readable",
        hint="mount -t tracefs tracefs /sys/kernel/tracing",
    )


def _btf(root: str) -> Capability:
    if _readable(root, "sys/kernel/btf/vmlinux"):
        return Capability(name="BTF", state=State.PRESENT, detail="/sys/kernel/btf/vmlinux")
    return Capability(
        name="BTF",
        state=State.ABSENT,
        detail="no /sys/kernel/btf/vmlinux: the kernel was built without CONFIG_DEBUG_INFO_BTF",
        hint="boot a kernel of the distribution",
    )


def _bcc(paths: Sequence[str]) -> Capability:
    """Look for the distribution's bcc; the package of that name on PyPI is another thing."""
    install = "apt install python3-bpfcc, or: dnf install python3-bcc"
    own = importlib.util.find_spec("bcc")
    for spec in (own, importlib.machinery.PathFinder.find_spec("bcc", list(paths))):
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            if os.path.exists(os.path.join(folder, "libbcc.py")):
                return Capability(name="bcc", state=State.PRESENT, detail=folder)
    if own is not None:
        return Capability(
            name="bcc",
            state=State.ABSENT,
            detail="the installed package bcc is the unrelated one from PyPI",
            hint=f"pip uninstall bcc; {install}",
        )
    return Capability(name="bcc", state=State.ABSENT, detail="not installed: no recorder", hint=install)


def _journal(root: str) -> Capability:
    for path in ("usr/bin/journalctl", "bin/journalctl"):
        if os.access(os.path.join(root, path), os.X_OK):
            return Capability(name="journal", state=State.PRESENT, detail=f"/{path}")
    return Capability(
        name="journal",
        state=State.LIMITED,
        detail="no journalctl: logs of units are not read",
        hint="apt install systemd, or: dnf install systemd",
    )


def _conntrack(root: str) -> Capability:
    """Look for the table that shows what published ports lead to; a kernel that tracks nothing translates nothing."""
    if os.path.exists(os.path.join(root, "proc/sys/net/netfilter/nf_conntrack_max")):
        path = "proc/self/net/nf_conntrack"
        if not _readable(root, path):
            return Capability(
                name="connection tracking",
                state=State.LIMITED,
                detail=f"/{path} is not there, or not readable: other ends behind published ports are not known",
                hint="boot a kernel with CONFIG_NF_CONNTRACK_PROCFS; to read it: CAP_DAC_READ_SEARCH",
            )
        return Capability(name="connection tracking", state=State.PRESENT, detail=f"/{path}")
    return Capability(name="connection tracking", state=State.PRESENT, detail="not in use: no address is translated")


def _libdw(root: str) -> Capability:
    name = "native stacks (libdw)"
    for pattern in ("usr/lib/*/libdw.so.1", "usr/lib64/libdw.so.1", "usr/lib/libdw.so.1", "lib/*/libdw.so.1"):
        found = glob.glob(pattern, root_dir=root)
        if found:
            return Capability(name=name, state=State.PRESENT, detail=f"/{found[0]}")
    return Capability(
        name=name,
        state=State.LIMITED,
        detail="not installed: of each native stack the innermost frame only",
        hint="apt install libdw1, or: dnf install elfutils-libs",
    )


def _yama(scope: str | None) -> Capability:
    """Look at the level of the Yama security module; below 3 CAP_SYS_PTRACE is enough."""
    level = (scope or "").strip()
    if level.isdecimal() and int(level) >= _YAMA_NOBODY:
        return Capability(
            name="yama",
            state=State.ABSENT,
            detail=f"kernel.yama.ptrace_scope is {level}: no stacks, tasks and locks, since nobody may read a process",
            hint="set kernel.yama.ptrace_scope = 2 in /etc/sysctl.d, then reboot: 3 is not taken back before",
        )
    return Capability(name="yama", state=State.PRESENT, detail=f"ptrace_scope {level}" if level else "not in use")


def _lockdown(text: str | None) -> Capability:
    match = re.search(r"\[(\w+)\]", text or "")
    level = match.group(1) if match else "none"
    if level == "confidentiality":
        return Capability(
            name="lockdown",
            state=State.LIMITED,
            detail="confidentiality: BPF programs cannot read kernel memory",
            hint="boot with lockdown=integrity",
        )
    return Capability(name="lockdown", state=State.PRESENT, detail=level)
