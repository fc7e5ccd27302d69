"""read_debug_traces: what NCCL, torch and CUDA tell or have left for debugging, of schedulers and workers.

Reads: the status of NCCL's RAS where one of them listens on its port on loopback; names, sizes and ages of the dumps
that torch's flight recorder has written, in /tmp and in the cache folder of root or of the process's HOME; the pipe
that CUDA opens for core dumps on request, which is named and never touched. Nothing is set off: no dump, no signal.
Privilege: CAP_SYS_PTRACE for processes of others. Cost: a list of open files and of two folders. Cannot see: dumps at
a place of their own (TORCH_FR_DUMP_TEMP_FILE); RAS in another network namespace or on another port (NCCL_RAS_ADDR).
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import stat
from collections.abc import Iterable, Iterator

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.host import Host, descriptors, nccl_ras, open_files, procfs, sock_diag
from freezeframe.agentd.host.text import escape
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import DebugTrace, Process, Snapshot

RAS, DUMP, PIPE = "nccl ras", "flight recorder", "cuda core pipe"
# Folders, below the root of a process, and what torch's dumps are called there unless it is told otherwise.
_DUMPS = (
    ("tmp", ("nccl_trace_rank_*", "comm_lib_trace_rank_*")),
    ("root/.cache/torch", ("comm_lib_trace_rank_*",)),
    ("home/*/.cache/torch", ("comm_lib_trace_rank_*",)),
)
_PIPE = "*/corepipe.cuda.*"
_RAS_S = 2.0
_RAS_BYTES = 64 * 1024
# Files of one folder that are looked at, and dumps that are told, the newest first.
_FILES, _TOLD = 20_000, 64
_ROLES = frozenset({Process.Role.SCHEDULER, Process.Role.WORKER, Process.Role.ENGINE_HTTP})


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over DebugTrace records."""
    seen: set[tuple[int, int]] = set()
    for target in job.targets:
        directory = host.proc(target.pid)
        report.doing(f"listing the files of {target.pid}")
        try:
            if procfs.stat(directory).start_ticks == target.start_ticks:
                traces = [*_pipes(target, directory), *_dumps(target, directory, host, seen)]
                report.part(Snapshot(debug_traces=tuple(traces)))
        except procfs.GoneError:
            pass
        except procfs.ProcfsError as error:
            report.missed(target.pid, str(error))
    _ask_ras(job.targets, host, report)
    for target in job.targets:
        report.done(target.pid)


def _pipes(target: Target, directory: str) -> Iterator[DebugTrace]:
    for path in sorted({file.name for file in open_files.opened(directory) if fnmatch.fnmatchcase(file.name, _PIPE)}):
        yield DebugTrace(pid=target.pid, kind=PIPE, path=escape(os.fsencode(path)))


def _dumps(target: Target, directory: str, host: Host, seen: set[tuple[int, int]]) -> list[DebugTrace]:
    now = host.clock.wall()
    found = []
    for folder, names in _DUMPS:
        for path in _folders(f"{directory}/root", folder):
            for entry in _entries(path):
                if not any(fnmatch.fnmatchcase(entry.name, name) for name in names):
                    continue
                try:
                    state = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # removed meanwhile
                # Processes of one container share a folder.
                if not stat.S_ISREG(state.st_mode) or (state.st_dev, state.st_ino) in seen:
                    continue
                seen.add((state.st_dev, state.st_ino))
                found.append(
                    DebugTrace(
                        pid=target.pid,
                        kind=DUMP,
                        path=escape(os.fsencode(f"{path}/{entry.name}"[len(directory) + len("/root") :])),
                        age_ms=max(0.0, (now - state.st_mtime) * 1000.0),
                        size_bytes=float(state.st_size),
                    )
                )
    return sorted(found, key=lambda trace: trace.age_ms or 0.0)[:_TOLD]


def _folders(root: str, folder: str) -> list[str]:
    first, star, rest = folder.partition("/*")
    if not star:
        return [f"{root}/{folder}"]
    return [f"{root}/{first}/{entry.name}{rest}" for entry in _entries(f"{root}/{first}")]


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(itertools.islice(entries, _FILES))
    except OSError:
        return []  # not there


def _ask_ras(targets: Iterable[Target], host: Host, report: Report) -> None:
    """Ask each process that listens there; those of a job that share the port know all the same."""
    report.doing("asking the kernel for listeners")
    try:
        sockets = sock_diag.tcp_sockets(info=False)
    except sock_diag.SockDiagError as error:
        report.partial(f"looking for NCCL's RAS: {error}")
        return
    listeners = {
        one.inode: one.local.rpartition(":")[0].strip("[]")
        for one in sockets
        if one.state == sock_diag.LISTEN and one.local_port == nccl_ras.PORT
    }
    for target in targets if listeners else ():
        try:
            mine = [
                listeners.pop(inode) for inode in descriptors.sockets_of(host.proc(target.pid)) if inode in listeners
            ]
        except OSError:
            continue  # ended, or told as missed already
        for address in mine:
            at = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - what it listens on
            if not (at.startswith("127.") or at == "::1"):
                continue
            report.doing(f"asking NCCL's RAS of {target.pid}")
            try:
                answer = nccl_ras.status(at, timeout_s=_RAS_S, limit=_RAS_BYTES)
            except nccl_ras.RasError as error:
                report.missed(target.pid, str(error))
                continue
            text = "\n".join(escape(line, 500) for line in answer.splitlines())
            path = f"[{at}]:{nccl_ras.PORT}" if ":" in at else f"{at}:{nccl_ras.PORT}"
            report.part(Snapshot(debug_traces=(DebugTrace(pid=target.pid, kind=RAS, path=path, text=text),)))


READ_DEBUG_TRACES = Collector(
    name="read_debug_traces",
    tier=Tier.OUTSIDE,
    collect=collect,
    wants=lambda target: target.role in _ROLES,
    patience_ms=4000.0,
)
