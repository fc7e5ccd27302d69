"""The processes of a bed: one router, two engines, a harness, perhaps a stray client; started, asked, stopped.

Every process ends with the bed, also when the starting thread dies. Ports are free ones of 127.0.0.1. The run
directory holds logs, control sockets, metrics and the tokenizer, and is removed at the end.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tests.bed import processes
from tests.bed.namespace import Namespace
from tests.bed.parts import Engine, Pids, Setup
from tests.bed.programs import bedlink
from tests.bed.routers import NATIVE_NAME, ROUTERS, Router, native
from tests.bed.tokenizer_folder import write_tokenizer

PROGRAMS = Path(__file__).parent / "programs"
PREFIX = "freezeframe-bed-"
START_TIMEOUT_S = 60.0
WAIT_TIMEOUT_S = 30.0
ROUTER_MIB, PYTHON_MIB = 2048, 1024


class Stack:
    """See the module docstring; `up` starts the programs, `down` ends them, `stop` removes the directory too."""

    engine_flags: tuple[str, ...] = ()
    """Further flags of every engine."""

    def __init__(self, *, clients: int, regular: bool, router: str, stray_via: str, tokens: int, gap_s: float) -> None:
        self.clients = clients
        self.regular = regular
        self.stray_via = stray_via
        self.keep_stray = False
        self.setup: Setup | None = None
        """None while nothing runs."""
        self._harness = {"clients": clients, "tokens": tokens, "gap": gap_s}
        self.run_dir = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._owner: IO[bytes] = (self.run_dir / "owner").open("wb")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        (self.run_dir / "tmp").mkdir()
        self.router: Router = native(self.run_dir) if router == NATIVE_NAME else ROUTERS[router]
        write_tokenizer(self.run_dir / "model")
        ports = processes.free_ports(6)
        self.router_port, self.router_metrics_port = ports[:2]
        roles = (
            (("engine0", "null"), ("engine1", "null")) if regular else (("prefill", "prefill"), ("decode", "decode"))
        )
        self.engines = {
            name: Engine(name, role, ports[2 + 2 * i], ports[3 + 2 * i], self.run_dir)
            for i, (name, role) in enumerate(roles)
        }
        self.children: list[processes.Child] = []
        self.namespace: Namespace | None = None
        self._pids: Pids | None = None

    # -- life --------------------------------------------------------------------------------------------------------

    def up(self, setup: Setup) -> None:
        """Start all programs but the stray client and wait until the router knows its engines."""
        self.setup = setup
        self.namespace = Namespace.make() if setup.own_network else None
        for engine in self.engines.values():
            self._start_engine(engine)
        command = self.router.command(
            self.router_port, self.router_metrics_port, self.engines.values(), setup.router_flags
        )
        self._spawn("router", command, ROUTER_MIB, **self.router.env)
        self._start_front()
        self._start_client("harness", "harness.py", self.entry_url, pool=setup.pool, **self._harness)
        for engine in self.engines.values():
            self.wait_for(f"{engine.name} to be up", Path(engine.control).exists, timeout_s=START_TIMEOUT_S)
        self.wait_for("the router to know its workers", self.workers_registered, timeout_s=START_TIMEOUT_S)
        self.wait_for("the harness to be up", lambda: self._reachable("harness"), timeout_s=START_TIMEOUT_S)

    def down(self) -> None:
        """End every process; safe to call twice."""
        pids = self._pids.all() if self._pids else []
        processes.stop(self.children)
        self.children.clear()
        deadline = time.monotonic() + 5
        while not all(processes.ended(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.02)
        for control in self.run_dir.glob("*.ctl*"):
            control.unlink()
        if self.namespace is not None:
            self.namespace.close()
        self.namespace, self.setup, self._pids = None, None, None

    def stop(self) -> None:
        """End every process and remove the run directory; safe to call twice."""
        self.down()
        shutil.rmtree(self.run_dir, ignore_errors=True)
        self._owner.close()

    # -- where things are --------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The router."""
        return f"http://127.0.0.1:{self.router_port}"

    @property
    def entry_url(self) -> str:
        """Where the harness sends its requests."""
        return self.url

    @property
    def router_metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.router_metrics_port}/metrics"

    @property
    def pids(self) -> Pids:
        if self._pids is None:
            by_name = {child.name: child.pid for child in self.children}
            self._pids = Pids(
                router=by_name["router"],
                harness=by_name["harness"],
                stray=by_name.get("stray"),
                engines={name: engine.pids() for name, engine in self.engines.items()},
            )
        return self._pids

    @property
    def logs(self) -> dict[str, Path]:
        return {child.name: child.log for child in self.children}

    # -- asking ------------------------------------------------------------------------------------------------------

    def client(self, name: str, **request: Any) -> dict[str, Any]:
        """Ask the harness or the stray client over its control channel."""
        return bedlink.ask(str(self.run_dir / f"{name}.ctl"), request)

    def wait_for(self, what: str, condition: Callable[[], bool], *, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Poll `condition`; BedError says `what` was waited for, or which process of the bed has ended."""
        processes.wait_for(what, condition, timeout_s=timeout_s, children=self.children)

    def router_answers(self) -> bool:
        return self._get(f"{self.url}/health") is not None

    def engines_empty(self) -> bool:
        """Whether nothing is in flight in any engine, but for what a stray client that stays may have."""
        allowed = 1 if self.keep_stray else 0
        empty = True
        for engine in self.engines.values():
            status = engine.http(do="look")
            queues = engine.scheduler(do="status")
            held = sum(queues[name] for name in queues if name.endswith("_reqs"))
            empty = empty and len(status["in_flight"]) <= allowed and held <= allowed
        return empty

    def connections_settled(self, mute: frozenset[str]) -> bool:
        """Whether every connection of an engine's HTTP process carries a request, but for the engines that are mute."""
        for engine in self.engines.values():
            if engine.name in mute:
                continue
            status = engine.http(do="status")
            # A blocked event loop closes nothing.
            if not status["blocked"] and status["connections"] > len(status["in_flight"]):
                return False
        return True

    def workers_registered(self) -> bool:
        """Whether the router knows all engines, and takes them for healthy."""
        answer = self._get(f"{self.url}/workers")
        workers = json.loads(answer)["workers"] if answer else []
        return len(workers) == len(self.engines) and all(worker["is_healthy"] for worker in workers)

    def _reachable(self, name: str) -> bool:
        try:
            self.client(name, do="status")
        except OSError:
            return False
        return True

    def _get(self, url: str) -> bytes | None:
        def ask() -> bytes | None:
            try:
                with urllib.request.urlopen(url, timeout=2) as response:
                    body: bytes = response.read()
            except (urllib.error.URLError, OSError):
                return None
            return body

        return self.namespace.inside(ask) if self.namespace is not None else ask()

    # -- starting ----------------------------------------------------------------------------------------------------

    def _spawn(self, name: str, command: list[str], memory_mib: int, **env: str) -> None:
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self.run_dir),
            "TMPDIR": str(self.run_dir / "tmp"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            **env,
        }
        namespace = self.namespace.path if self.namespace is not None else ""
        self.children.append(
            processes.start(
                name, command, run_dir=self.run_dir, env=environment, memory_mib=memory_mib, namespace=namespace
            )
        )

    def _start_front(self) -> None:
        """Start what stands before the router; nothing here."""

    def _start_engine(self, engine: Engine) -> None:
        metrics = self.run_dir / "tmp" / f"{engine.name}-metrics"
        shutil.rmtree(metrics, ignore_errors=True)
        metrics.mkdir()
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(self.run_dir / "model")]
        command += ["--host", "127.0.0.1", "--port", str(engine.port), "--enable-metrics", "--sleep-on-idle"]
        command += self.engine_flags
        if engine.role != "null":
            command += ["--disaggregation-mode", engine.role]
            command += ["--disaggregation-bootstrap-port", str(engine.bootstrap_port)]
        self._spawn(
            engine.name,
            command,
            PYTHON_MIB,
            PYTHONPATH=str(PROGRAMS),
            PROMETHEUS_MULTIPROC_DIR=str(metrics),
            BED_CONTROL=engine.control,
        )

    def _start_client(self, name: str, program: str, url: str, **options: float) -> None:
        command = [sys.executable, str(PROGRAMS / program), "--url", url]
        command += ["--control", str(self.run_dir / f"{name}.ctl"), "--parent", str(os.getpid())]
        for option, value in options.items():
            command += [f"--{option}", str(value)]
        self._spawn(name, command, PYTHON_MIB)

    def start_stray(self) -> None:
        """Have the stray client stream, started if need be."""
        if not any(child.name == "stray" for child in self.children):
            target = self.url if self.stray_via == "router" else list(self.engines.values())[-1].url
            self._start_client("stray", "stray_client.py", target)
            self._pids = None
        self.wait_for("the stray client to be up", lambda: self._reachable("stray"))
        self.client("stray", do="run")

    def restart(self, name: str) -> None:
        """End an engine and start it again; returns when it is up."""
        engine = self.engines[name]
        self.end(name)
        for control in self.run_dir.glob(f"{name}.ctl*"):
            control.unlink()
        self._start_engine(engine)
        self.wait_for(f"{name} to be up", Path(engine.control).exists, timeout_s=START_TIMEOUT_S)
        self._pids = None

    def end(self, name: str) -> None:
        """End one program for good; `pids` goes on naming an engine that was known before."""
        ended = [child for child in self.children if child.name == name]
        processes.stop(ended)
        self.children = [child for child in self.children if child.name != name]
        (self.run_dir / f"{name}.ctl").unlink(missing_ok=True)
        if name == "stray" and ended:
            self._pids = None


def sweep() -> None:
    """Remove run directories whose owner was killed before it could do so."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            with (folder / "owner").open("rb") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, being made, or somebody else's
