"""read_command_lines: title and launch flags of processes, by the allow-list of `host.argv`. Never shown by itself.

Reads: /proc/PID/cmdline, which waits for the process's memory lock: after a look that tells most stalls beforehand,
and in a worker that is given up after 200 ms without an answer. Of a process that overwrote its arguments with a title:
the parent's command line when that runs the same program, else the files of its systemd unit; so of one that blanked
them. Privilege: none.
Cost: about 40 microseconds per process. Cannot see: flags of a process that overwrote them and was started by a shell.

Then the names of the targets' containers, from the files of their runtime (`host.containers`), each container once: the
last step, since these files may be on a disk that hangs.

Records hold: pid, start_ticks, title, argv, argv_source ("own", "parent", "unit"); memory_blocked where it is; pod,
namespace, container_name.
"""

from __future__ import annotations

import os

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.host import Host, argv, cgroups, containers, memory, procfs, units
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import Process, Snapshot

_PATIENCE_MS = 200.0
_MAX_ANCESTORS = 4
_MAX_TITLE = 256


def collect(job: Job, host: Host, report: Report) -> None:
    """Read the targets one by one."""
    machine = os.uname().machine
    for target in job.targets:
        if target.memory_blocked:
            report.missed(target.pid, "its memory was stuck before: left alone")
            continue
        try:
            _read(target, host, machine, report)
        except procfs.GoneError:
            report.done(target.pid)  # ended: there is no command line any more
        except procfs.ProcfsError as error:
            report.missed(target.pid, str(error))
    _name_containers(job, host, report)


def _name_containers(job: Job, host: Host, report: Report) -> None:
    inside: dict[str, list[Target]] = {}
    for target in job.targets:
        try:
            container = cgroups.parse_cgroup(procfs.cgroup(host.proc(target.pid))).container
        except procfs.ProcfsError:
            continue
        if container:
            inside.setdefault(container, []).append(target)
    for container, targets in inside.items():
        report.doing(f"looking for the names of container {container[:12]}")
        names = containers.names_of(host, container)
        processes = (
            Process(
                pid=target.pid,
                start_ticks=target.start_ticks,
                pod=names.pod,
                namespace=names.namespace,
                container_name=names.name,
            )
            for target in targets
        )
        report.part(Snapshot(processes=tuple(processes)))


def _read(target: Target, host: Host, machine: str, report: Report) -> None:
    directory = host.proc(target.pid)
    if procfs.stat(directory).start_ticks != target.start_ticks:
        report.missed(target.pid, "the process ended and another one has its pid now")
        return
    stall = memory.stall_of(directory, machine)
    if stall:
        report.part(Snapshot(processes=(Process(pid=target.pid, memory_blocked=True),)))
        report.missed(target.pid, f"{stall}: left alone")
        return
    report.doing(f"reading {directory}/cmdline")
    data = procfs.read_file(f"{directory}/cmdline")
    title = overwritten_title(data, directory)
    if title or is_blank(data):
        kept, source = _launch_flags(host, directory, machine, report)
        shown = argv.allowed_title(title)
    else:
        kept = argv.allowed(_split(data))
        source = "own" if kept else ""
        shown = " ".join(kept)
    if len(shown) > _MAX_TITLE:
        shown = shown[:_MAX_TITLE] + argv.HIDDEN
    process = Process(pid=target.pid, start_ticks=target.start_ticks, title=shown, argv=kept, argv_source=source)
    report.part(Snapshot(processes=(process,)))
    report.done(target.pid)


def is_blank(data: bytes) -> bool:
    """Whether a process overwrote its arguments with nothing; one that has none, such as a zombie, did not."""
    return bool(data) and not data.strip(b"\0 ")


def overwritten_title(data: bytes, directory: str) -> bytes:
    """Give the title of a process that overwrote its arguments: one string, not its program's name; b"" otherwise."""
    text = data.rstrip(b"\0 ")
    if not text or b"\0" in text:
        return b""
    if len(data) - len(text) > 1:
        return text  # padded over what was there before
    try:
        program = procfs.exe(directory).removesuffix(" (deleted)").rpartition("/")[2].encode()
    except procfs.ProcfsError:
        program = b""
    first = text.split(b" ", 1)[0].rpartition(b"/")[2].lstrip(b"-")
    if b" " not in text and (not program or program.startswith(first)):
        return b""
    # A title as long as what it overwrote has no padding: "nginx: worker process", "sglang::detokenizer".
    return text if b" " in text or b":" in text else b""


def _launch_flags(host: Host, directory: str, machine: str, report: Report) -> tuple[tuple[str, ...], str]:
    try:
        exe = procfs.exe(directory)
        ancestor = directory
        for _ in range(_MAX_ANCESTORS):
            parent = procfs.stat(ancestor).parent_pid
            ancestor = host.proc(parent)
            if parent <= 1 or procfs.exe(ancestor) != exe or memory.stall_of(ancestor, machine):
                break
            report.doing(f"reading {ancestor}/cmdline")
            data = procfs.read_file(f"{ancestor}/cmdline")
            if not overwritten_title(data, ancestor) and not is_blank(data):
                return argv.allowed(_split(data)), "parent"
    except procfs.ProcfsError:
        pass  # an ancestor has gone, or is not ours to see
    try:
        unit = cgroups.parse_cgroup(procfs.cgroup(directory)).unit
    except procfs.ProcfsError:
        return (), ""
    kept = argv.allowed(units.launch_command(host, unit)) if unit else ()
    return kept, "unit" if kept else ""


def _split(data: bytes) -> list[bytes]:
    return data.removesuffix(b"\0").split(b"\0") if data else []


READ_COMMAND_LINES = Collector(
    name="read_command_lines",
    tier=Tier.MEMORY,
    collect=collect,
    patience_ms=_PATIENCE_MS,
    wants=lambda _target: True,
)
