"""A real daemon for tests: the supervisor and its children, started as users start it and ended by pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Daemon:
    pid: int
    runtime_dir: Path
    state_dir: Path
    log: Path

    @property
    def address(self) -> str:
        return f"unix:{self.runtime_dir}/capture.sock"

    def socket(self, role: str) -> str:
        return f"unix:{self.runtime_dir}/{role}.sock"


def healthy(address: str, timeout_s: float = 1.0) -> bool:
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@contextlib.contextmanager
def running_daemon(
    *arguments: str, without: Sequence[str] = (), nobody_with: Sequence[str] = (), inside: Sequence[str] = ()
) -> Iterator[Daemon]:
    """Start `freezeframe-agentd` in directories of its own; ready when its capture socket answers the health check.

    `without` are capabilities that it is not to have, as setpriv spells them ("sys_admin"). With `nobody_with` it runs
    as nobody with these alone, in a mount namespace of its own with tracefs, as the unit starts it. `inside` begins the
    command line of one in other namespaces.
    """
    dropped = ",".join(f"-{each}" for each in without)
    setpriv = ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}"] if without else []
    if nobody_with:
        alone = ",".join(["-all", *(f"+{each}" for each in nobody_with)])
        setpriv = [
            "unshare", "--mount", "sh", "-c", 'mount -t tracefs tracefs /sys/kernel/tracing; exec "$@"', "sh",
            "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs",
            f"--inh-caps={alone}", f"--ambient-caps={alone}", f"--bounding-set={alone}",
        ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="freezeframe-test-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        log = folder / "agentd.log"
        agent_dirs = folder / "run", folder / "state"
        if nobody_with:
            for each in agent_dirs:
                each.mkdir()
                os.chown(each, 65534, 65534)
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [
                    *inside, *setpriv, sys.executable, "-m", "freezeframe.agentd",
                    "--runtime-dir", str(agent_dirs[0]), "--state-dir", str(agent_dirs[1]), *arguments,
                ],
                stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
            )  # fmt: skip
        agent = Daemon(pid=process.pid, runtime_dir=agent_dirs[0], state_dir=agent_dirs[1], log=log)
        try:
            deadline = time.monotonic() + READY_TIMEOUT_S
            while not healthy(agent.address):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"the agent did not come up:\n{log.read_text(errors='replace')[-4000:]}")
                time.sleep(0.05)
            yield agent
        finally:
            with contextlib.suppress(ProcessLookupError):
                # Whoever entered other namespaces for it passes no signal on.
                os.kill(_child_of(process.pid) if inside else process.pid, signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_TIMEOUT_S)


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
