"""The real sglang-router between the bed's harness and one real engine, or a pair of real SGLang engines.

Every process ends with the stack. Ports are free ones of 127.0.0.1; the run directory holds logs and control sockets.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.bed import processes
from tests.bed.parts import Engine
from tests.bed.programs import bedlink
from tests.bed.routers import ROUTERS
from tests.bed.stack import PREFIX, PROGRAMS, PYTHON_MIB, ROUTER_MIB, sweep
from tests.engines.products import Product

INSIDE = Path(__file__).parent / "inside"
CLIENTS, TOKENS = 30, 32
# An engine imports for half a minute where it has a core to itself.
START_TIMEOUT_S = 400.0
WAIT_TIMEOUT_S = 180.0
# Private writable memory of one process of an engine: mostly stacks of its threads that are never touched.
ENGINE_MIB = 16384


class RealStack:
    """See the module docstring; made by `running`."""

    def __init__(self, product: Product, *, pair: bool) -> None:
        self.product = product
        self.run_dir = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._owner: IO[bytes] = (self.run_dir / "owner").open("wb")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        (self.run_dir / "tmp").mkdir()
        self.ports = processes.free_ports(6)
        roles = (("prefill", "prefill"), ("decode", "decode")) if pair else (("engine", "null"),)
        self.engines = {
            # The prefill engine serves the bootstrap port, and decode is told the same one.
            name: Engine(name, role, self.ports[2 + i], self.ports[5], self.run_dir)
            for i, (name, role) in enumerate(roles)
        }
        self.children: list[processes.Child] = []
        self._left: set[Path] = set()
        """Shared memory of what was killed: nobody else removes it."""
        self.parts: dict[str, int] = {}
        """"router", "harness", and of each engine "engine.http", "engine.scheduler", ... -> pid."""

    # -- life --------------------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Start everything that does not run yet and wait until the router has its workers."""
        for engine in self.engines.values():
            if not self._runs(engine.name):
                self._start_engine(engine)
        for engine in self.engines.values():
            self.wait_for(
                f"{engine.name} to serve", lambda e=engine: self._get(f"{e.url}{self.product.answers}") is not None,
                timeout_s=START_TIMEOUT_S,
            )  # fmt: skip
            self._find_parts(engine.name)
        if not self._runs("router"):
            command = ROUTERS["sglang-router"].command(self.ports[0], self.ports[1], self.engines.values(), ())
            self._spawn("router", command, ROUTER_MIB, {})
        url = f"http://127.0.0.1:{self.ports[0]}"
        self.wait_for("the router to know its workers", lambda: self._workers_known(url), timeout_s=START_TIMEOUT_S)
        if not self._runs("harness"):
            command = [sys.executable, str(PROGRAMS / "harness.py"), "--url", url, "--clients", str(CLIENTS)]
            command += ["--control", str(self.run_dir / "harness.ctl"), "--parent", str(os.getpid())]
            self._spawn("harness", [*command, "--tokens", str(TOKENS)], PYTHON_MIB, {})
        self.wait_for("the harness to be up", self._harness_reachable)
        self.parts |= {child.name: child.pid for child in self.children if child.name in {"router", "harness"}}

    def stop(self) -> None:
        """End every process and remove the run directory; safe to call twice."""
        self.end(*[child.name for child in self.children])
        shutil.rmtree(self.run_dir, ignore_errors=True)
        self._owner.close()

    def end(self, *names: str) -> None:
        """End these programs with all that they started."""
        ended = [child for child in self.children if child.name in names]
        family = {pid: started for child in ended for pid, started in _family(child.pid).items()}
        left = {path for pid in family for path in _shared_memory(pid)} | self._left
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        processes.stop(ended, grace_s=10.0)
        for pid, started in family.items():
            if _started(pid) == started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for path in left:
            path.unlink(missing_ok=True)
        self.children = [child for child in self.children if child.name not in names]
        for name in names:
            (self.run_dir / f"{name}.ctl").unlink(missing_ok=True)
            self.parts = {part: pid for part, pid in self.parts.items() if part.partition(".")[0] != name}

    # -- asking ------------------------------------------------------------------------------------------------------

    def harness(self, **request: Any) -> dict[str, Any]:
        """Ask the harness over its control channel."""
        return bedlink.ask(str(self.run_dir / "harness.ctl"), request)

    def wait_for(self, what: str, condition: Callable[[], bool], *, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Poll `condition`; BedError says `what` was waited for, or which program has ended."""
        processes.wait_for(what, condition, timeout_s=timeout_s, children=self.children)

    def pids(self, *parts: str) -> list[int]:
        """Pids of these parts, sorted; "engine" is all of that engine's parts, and none asked for is all of them."""
        wanted = [name for name in self.parts if not parts or name in parts or name.partition(".")[0] in parts]
        assert wanted, f"{parts} not among {self.parts}"
        return sorted(self.parts[name] for name in wanted)

    def names(self, pids: Sequence[int]) -> tuple[str, ...]:
        """Parts that have these pids; the pid itself where it is no part."""
        by_pid = {pid: part for part, pid in self.parts.items()}
        return tuple(sorted(by_pid.get(pid, str(pid)) for pid in pids))

    def kill(self, engine: str) -> None:
        """Kill every process of an engine."""
        pids = self.family(engine)
        self._left = {path for pid in pids for path in _shared_memory(pid)}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.end(engine)

    def family(self, engine: str) -> list[int]:
        """Every process of an engine, its helpers too."""
        return sorted(_family(self.parts[f"{engine}.http"]))

    def post(self, engine: str, path: str) -> None:
        """Tell an engine something over its own API."""
        request = urllib.request.Request(
            f"{self.engines[engine].url}{path}", b"{}", {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as response:
            response.read()

    def completed_by_client(self) -> dict[int, int]:
        return {entry["index"]: entry["completed"] for entry in self.harness(do="status")["clients"]}

    def wait_served(self) -> None:
        """Return once every client has got a whole answer from now on."""
        before = self.completed_by_client()

        def served() -> bool:
            return all(done > before[index] for index, done in self.completed_by_client().items())

        self.wait_for("every client to be served", served)

    def wait_still(self, still_s: float) -> None:
        """Return once every client has a request in flight of which nothing has come for `still_s`."""
        seen: list[Any] = [None, time.monotonic()]

        def still() -> bool:
            harness = self.harness(do="status")
            picture = [(entry["request_id"], entry["bytes_in"]) for entry in harness["clients"]]
            if picture != seen[0] or harness["in_flight"] != CLIENTS:
                seen[:] = [picture, time.monotonic()]
            return time.monotonic() - seen[1] >= still_s

        self.wait_for("every request to hang", still)

    def quiet(self) -> None:
        """Drop what is in flight and return once the harness is parked and the engines answer."""
        self.harness(do="cancel")
        self.wait_for("the harness to be parked", lambda: self.harness(do="status")["in_flight"] == 0)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _start_engine(self, engine: Engine) -> None:
        pipe = self.hang_pipe(engine.name)
        if not pipe.exists():
            os.mkfifo(pipe)
        command = self.product.command(engine.port, role=engine.role, bootstrap_port=engine.bootstrap_port)
        env = {
            **self.product.env, "PYTHONPATH": str(INSIDE), "BED_HANG": str(pipe), "TRANSFORMERS_OFFLINE": "1",
            "DO_NOT_TRACK": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self._spawn(engine.name, command, ENGINE_MIB, env)

    def hang_pipe(self, engine: str) -> Path:
        """See inside/sitecustomize.py."""
        return self.run_dir / f"{engine}.hang"

    def let_go(self, engine: str) -> None:
        """Let a process of an engine go on that stands in its pipe."""
        with contextlib.suppress(OSError):  # nobody stands there
            os.close(os.open(self.hang_pipe(engine), os.O_WRONLY | os.O_NONBLOCK))

    def _spawn(self, name: str, command: list[str], memory_mib: int, env: Mapping[str, str]) -> None:
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self.run_dir),
            "TMPDIR": str(self.run_dir / "tmp"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            **env,
        }
        self.children.append(
            processes.start(name, command, run_dir=self.run_dir, env=environment, memory_mib=memory_mib)
        )

    def _runs(self, name: str) -> bool:
        return any(child.name == name for child in self.children)

    def _find_parts(self, engine: str) -> None:
        leader = next(child.pid for child in self.children if child.name == engine)
        self.parts[f"{engine}.http"] = leader
        for part, start in self.product.parts.items():
            for pid in _family(leader):
                with contextlib.suppress(OSError):  # a helper that has ended
                    if pid != leader and Path(f"/proc/{pid}/comm").read_text().startswith(start):
                        self.parts[f"{engine}.{part}"] = pid
        assert len(self.parts.keys() & {f"{engine}.{part}" for part in self.product.parts}) == len(self.product.parts)

    def _workers_known(self, url: str) -> bool:
        answer = self._get(f"{url}/workers")
        workers = json.loads(answer)["workers"] if answer else []
        return len(workers) == len(self.engines) and all(worker["is_healthy"] for worker in workers)

    def _harness_reachable(self) -> bool:
        try:
            self.harness(do="status")
        except OSError:
            return False
        return True

    @staticmethod
    def _get(url: str) -> bytes | None:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                body: bytes = response.read()
        except (urllib.error.URLError, OSError):
            return None
        return body


@contextlib.contextmanager
def running(product: Product, *, pair: bool = False) -> Iterator[RealStack]:
    """A stack that serves."""
    sweep()
    stack = RealStack(product, pair=pair)
    try:
        stack.up()
        yield stack
    finally:
        stack.stop()


def _family(leader: int) -> dict[int, str]:
    """A process and all its descendants -> when each started, by which a pid that was given again is told."""
    found: dict[int, str] = {}
    left = [leader]
    while left:
        pid = left.pop()
        started = _started(pid)
        if not started:
            continue
        found[pid] = started
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                left += map(int, (task / "children").read_text().split())
    return found


def _started(pid: int) -> str:
    """Start of a process in clock ticks since boot; "" when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


def _shared_memory(pid: int) -> set[Path]:
    """Files of shared memory that a process has mapped."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    return {
        Path(line.split(maxsplit=5)[5]) for line in lines if " /dev/shm/" in line and not line.endswith("(deleted)")
    }
