"""The recorder's process: arms the programs, keeps the ledger, answers workers. No socket of its own in a file system.

Started by the supervisor with a control channel, whose end ends it; "recorder" on it brings the channel to the
launcher, again for each new launcher, over which "ask" brings the sockets of workers. A question on one of these is a
JSON object {"what": ...}: "requests", "futexes", "history" or "edges"; the answer is described in `host.recorder`.
What cannot be armed is an answer, too, and is tried again every minute.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple
from typing import Any

from freezeframe.agentd import config as configuration
from freezeframe.agentd import logs, supervisor
from freezeframe.agentd.bpf import layout, loader, programs
from freezeframe.agentd.bpf.errors import BpfError
from freezeframe.agentd.bpf.loader import Loaded
from freezeframe.agentd.channel import Channel, close_all
from freezeframe.agentd.config import Config
from freezeframe.agentd.errors import StartError
from freezeframe.agentd.host import namespaces, procfs
from freezeframe.agentd.logs import Logger
from freezeframe.agentd.recorder.connections import Connections
from freezeframe.agentd.recorder.futexes import Futexes
from freezeframe.agentd.recorder.history import INTERVAL_S
from freezeframe.agentd.recorder.ledger import Ledger
from freezeframe.agentd.recorder.losses import Losses
from freezeframe.agentd.recorder.sampler import Sampler

_SWEEP_S = 0.25
_PRUNE_S = 1.0
# How often processes with connections are looked for that no event told of.
_SCAN_S = 30.0
_TRY_AGAIN_S = 60.0
_QUESTION_BYTES = 4096
# Workers that are served at once.
_ASKERS = 64


class Recorder:
    """State of the process; `run` drives it."""

    def __init__(self, control: Channel, config: Config, directory: str, logger: Logger) -> None:
        """`directory` is private to us."""
        self._control = control
        self._config = config.recorder
        self._directory = directory
        self._log = logger
        self._launcher: Channel | None = None
        self._askers: list[socket.socket] = []
        self._ledger: Ledger | None = None
        self._sampler: Sampler | None = None
        self._futexes: Futexes | None = None
        self._connections: Connections | None = None
        self._uring: Loaded | None = None
        self._losses = Losses()
        self._without_sockets = ""
        self._why_not = ("the recorder is not armed yet", "")
        self._rung = 0
        # Processes that need not be looked at again: what they open later is seen.
        self._scanned: set[int] = set()

    def run(self) -> None:
        """Serve until the control channel ends."""
        steps = (
            (self._arm, _TRY_AGAIN_S),
            (self._sweep, _SWEEP_S),
            (self._prune, _PRUNE_S),
            (self._scan, _SCAN_S),
            (self._sample, INTERVAL_S),
        )
        due = [0.0 for _ in steps]
        try:
            while not self._control.closed:
                for number, (step, period_s) in enumerate(steps):
                    if due[number] <= time.monotonic():
                        step()
                        due[number] = time.monotonic() + period_s
                self._wait(min(due) - time.monotonic())
        finally:
            for each in (self._ledger, self._connections, self._uring):
                if each is not None:
                    each.close()

    def _arm(self) -> None:
        if self._ledger is not None:
            return
        if not self._config.enabled:
            self._why_not = ("the recorder is switched off", "set recorder.enabled = true in the agent's configuration")
            return
        if not namespaces.sees_host_pids():
            self._why_not = (namespaces.OTHER_PIDS, namespaces.HOST_PIDS_HINT)
            return
        try:
            loaded = loader.load(programs.LEDGER, self._directory, kernel_headers=self._config.kernel_headers)
        except BpfError as error:
            self._why_not = (error.detail, error.hint)
            self._log.warning("arming the recorder", error=error.detail, hint=error.hint)
            return
        self._rung = loaded.rung
        self._ledger = Ledger(loaded)
        self._sampler = Sampler(self._ledger.counted)
        self._futexes = Futexes(loaded)
        self._arm_the_rest()
        self._log.info(
            "recorder armed", ms=round(loaded.duration_ms), rung=loaded.rung, locked_bytes=loaded.locked_bytes()
        )
        gc.collect()
        gc.freeze()

    def _arm_the_rest(self) -> None:
        """What the ledger can do without."""
        headers = self._config.kernel_headers
        try:
            self._connections = Connections(loader.load(programs.SOCKETS, self._directory, kernel_headers=headers))
            self._without_sockets = ""
        except BpfError as error:
            self._without_sockets = error.detail
            self._log.warning("arming the trace of connections", error=error.detail)
        try:
            self._uring = loader.load(programs.URING, self._directory, kernel_headers=headers)
        except BpfError as error:
            # A kernel without io_uring.
            self._log.info("arming the trace of io_uring", error=error.detail)

    def _sweep(self) -> None:
        if self._ledger is not None:
            self._ledger.sweep()
        if self._connections is not None:
            self._connections.read()

    def _prune(self) -> None:
        if self._ledger is not None:
            self._ledger.prune()
            self._losses.note(time.monotonic(), self._ledger.counters())

    def _sample(self) -> None:
        if self._sampler is not None:
            self._sampler.step()

    def _scan(self) -> None:
        """Find processes that have connections and are not watched: they had them before the recorder was armed."""
        if self._ledger is None:
            return
        inodes: dict[int, frozenset[int]] = {}
        self._io_uring_pids()
        present = set(procfs.pids("/proc"))
        new, self._scanned = present - self._scanned, present
        for pid in sorted(new):
            with suppress(OSError):
                namespace = namespaces.namespace_of("/proc", pid)
                if namespace not in inodes:
                    inodes[namespace] = frozenset(
                        each.inode for each in namespaces.sockets_of("/proc", pid).tcp if each.inode
                    )
                if inodes[namespace]:
                    self._ledger.watch(pid, inodes[namespace])

    def _wait(self, timeout_s: float) -> None:
        poll = select.poll()
        sources: dict[int, Any] = {self._control.fileno(): self._follow_control}
        if self._launcher is not None:
            sources[self._launcher.fileno()] = self._follow_launcher
        for each in self._askers:
            sources[each.fileno()] = each
        for descriptor in sources:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(max(0.0, timeout_s) * 1000):
            source = sources[descriptor]
            if isinstance(source, socket.socket):
                self._answer(source)
            else:
                source()

    def _follow_control(self) -> None:
        for message in self._control.receive():
            if message.op == "recorder" and len(message.descriptors) == 1:
                if self._launcher is not None:
                    self._launcher.close()
                self._launcher = Channel(socket.socket(fileno=message.descriptors[0]))
            else:
                message.close()

    def _follow_launcher(self) -> None:
        if self._launcher is None:
            return
        for message in self._launcher.receive():
            if message.op == "ask" and len(message.descriptors) == 1 and len(self._askers) < _ASKERS:
                asker = socket.socket(fileno=message.descriptors[0])
                asker.setblocking(False)
                self._askers.append(asker)
            else:
                message.close()
        if self._launcher.closed:
            self._launcher.close()
            self._launcher = None

    def _answer(self, asker: socket.socket) -> None:
        try:
            data = asker.recv(_QUESTION_BYTES)
            question = json.loads(data) if data else None
        except (OSError, ValueError):
            question = None
        if not isinstance(question, dict):
            self._askers.remove(asker)
            asker.close()
            return
        state, records = self._tell(str(question.get("what", "")))
        descriptors = []
        if records is not None:
            memory = os.memfd_create("records", os.MFD_CLOEXEC)
            descriptors.append(memory)
            with open(memory, "wb", closefd=False) as stream:
                stream.write(json.dumps(records, separators=(",", ":")).encode())
        with suppress(OSError):
            socket.send_fds(asker, [json.dumps(state).encode()], descriptors, socket.MSG_NOSIGNAL)
        close_all(descriptors)

    def _tell(self, what: str) -> tuple[dict[str, Any], object]:
        ledger = self._ledger
        if ledger is None or self._futexes is None:
            return {"error": self._why_not[0], "hint": self._why_not[1]}, None
        state: dict[str, Any] = {"now_ns": time.monotonic_ns(), "armed_ns": ledger.armed_ns}
        if what == "futexes":
            addresses = [astuple(each) for each in self._futexes.addresses()]
            switched_out = [(tid, *times) for tid, times in self._futexes.switched_out().items()]
            return state, {"switched_out": switched_out, "addresses": addresses}
        records: object
        if what == "requests":
            flights = [astuple(flight) for flight in ledger.in_flight()]
            records = {"requests": flights, "resting": ledger.resting(), "connections": self._edges()}
        elif what == "history" and self._sampler is not None:
            records = [
                (*told.key, [round(value, 1) for value in told.values], told.last_nonzero_s)
                for told in self._sampler.history.tell()
            ]
        elif what == "edges" and self._sampler is not None:
            # Events are told in the history alone.
            records = [(*each.edge, *each[1:-1]) for each in self._sampler.edges]
        else:
            return {"error": f"the recorder knows no {what!r}"}, None
        counters = ledger.counters()
        self._losses.note(time.monotonic(), counters)
        state |= {
            # Of the ages: not before any of the requests began.
            "now_ns": time.monotonic_ns(),
            "rung": self._rung,
            "cpu_s": time.process_time(),
            "locked_bytes": ledger.locked_bytes(),
            "evicted": ledger.evicted,
            "io_uring_pids": self._io_uring_pids(),
            "without_sockets": self._without_sockets,
            **ledger.totals(),
            **counters,
            "lost_lately": self._losses.lately(time.monotonic()),
        }
        return state, records

    def _edges(self) -> list[tuple[str, str, str, int, int, int]]:
        if self._connections is None:
            return []
        self._connections.read()
        return [(*edge, count.number, count.last_ns, count.pid) for edge, count in self._connections.edges.items()]

    def _io_uring_pids(self) -> list[int]:
        """Those that live; of the others the entries go."""
        if self._uring is None:
            return []
        found = []
        sockets = self._uring.maps["uring_sockets"]
        for key, _ in list(sockets.items()):
            pid = layout.PID.unpack(key)[0]
            if os.path.exists(f"/proc/{pid}"):
                found.append(pid)
            else:
                sockets.drop(key)
        return sorted(found)


def main(argv: Sequence[str]) -> None:
    """Be the recorder until the control channel, the last argument, ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    *options, descriptor = argv
    control = Channel(socket.socket(fileno=int(descriptor)))
    os.set_inheritable(control.fileno(), False)
    signal.signal(signal.SIGTERM, lambda *_: control.close())
    runtime_dir, path = options[0], options[1] if len(options) > 1 else None
    try:
        config = configuration.in_force(path, runtime_dir=runtime_dir)
        directory = os.path.join(config.runtime_dir, "recorder")
        supervisor.prepare(directory, 0o700)
    except StartError as error:
        sys.exit(error.detail)
    for name in os.listdir(directory):
        if not name.startswith(loader.KEPT):
            # What a killed one left.
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
    tempfile.tempdir = directory
    logger, writer = logs.start(config.log_level)
    Recorder(control, config, directory, logger).run()
    writer.drain(1.0)


if __name__ == "__main__":
    main(sys.argv[1:])
