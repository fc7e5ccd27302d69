"""A running bed: one router, two engines, a harness, perhaps a stray client.

    with Bed.start(wedge="router-dual-leg", clients=30, stray=True) as bed:
        bed.wait_wedged()
        ...                       # look at bed.pids from outside
        bed.enter("none")         # leaves the wedge and enters another
        bed.wait_wedged()

Every process ends with the bed, also when the starting thread dies. Ports are free ones of 127.0.0.1; several beds
run side by side. The run directory holds logs, control sockets, metrics and the tokenizer, and is removed at the end.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from tests.bed import processes
from tests.bed.parts import Engine, Pids, RequestTruth, Truth
from tests.bed.programs import bedlink
from tests.bed.tokenizer_folder import write_tokenizer
from tests.bed.wedges import Wedge, find_wedge

if TYPE_CHECKING:
    from typing_extensions import Self

PROGRAMS = Path(__file__).parent / "programs"
PREFIX = "freezeframe-bed-"
START_TIMEOUT_S = 60.0
WEDGE_TIMEOUT_S = 30.0
ROUTER_MIB, PYTHON_MIB = 2048, 1024


class Bed:
    """See the module docstring; made by `start`."""

    def __init__(self, *, clients: int, regular: bool, stray_via: str) -> None:
        self.clients = clients
        self.regular = regular
        self.stray_via = stray_via
        self.keep_stray = False
        self.run_dir = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._owner: IO[bytes] = (self.run_dir / "owner").open("wb")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        (self.run_dir / "tmp").mkdir()
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
        self.wedge: Wedge = find_wedge("idle")
        self._entered = False
        self.chosen_engine: str | None = None
        self._pids: Pids | None = None

    # -- life --------------------------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        wedge: str = "idle",
        *,
        clients: int = 30,
        regular: bool = False,
        stray: bool = False,
        stray_via: str = "engine",
        tokens: int = 16,
        gap_s: float = 0.05,
        engine: str | None = None,
    ) -> Bed:
        """Start everything and enter `wedge` (see `wait_wedged` for when it is in force).

        Args:
            wedge: a name of `tests.bed.wedges.WEDGES`.
            clients: of the harness, each with one request in flight at a time.
            regular: two unified engines behind a regular router instead of a prefill and a decode engine.
            stray: whether the stray client streams whatever the wedge is.
            stray_via: "engine" (straight to the decode engine or to the last one) or "router".
            tokens: of one answer to the harness.
            gap_s: between two requests of a client. With 0 the next request leaves in the clock tick in which the last
                answer arrived, so that the ages of the last bytes in and out are equal.
            engine: as in `enter`.

        Raises:
            processes.BedError: something did not come up; everything has been stopped again.
        """
        sweep()
        bed = cls(clients=clients, regular=regular, stray_via=stray_via)
        bed.keep_stray = stray
        try:
            bed._start_engines()
            bed._start_router()
            bed._start_client("harness", "harness.py", bed.url, clients=clients, tokens=tokens, gap=gap_s)
            bed._wait_up()
            bed.enter(wedge, engine=engine)
        except BaseException:
            bed.stop()
            raise
        return bed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End every process and remove the run directory; safe to call twice."""
        pids = self._pids.all() if self._pids else []
        processes.stop(self.children)
        self.children.clear()
        deadline = time.monotonic() + 5
        while not all(processes.ended(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.02)
        shutil.rmtree(self.run_dir, ignore_errors=True)
        self._owner.close()

    # -- where things are --------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The router."""
        return f"http://127.0.0.1:{self.router_port}"

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

    def describe(self) -> dict[str, Any]:
        """Everything a script needs, as JSON: pids, urls, logs, run directory."""
        pids = self.pids
        return {
            "wedge": self.wedge.name,
            "engine": self.wedge.engine_name(self),
            "clients": self.clients,
            "run_dir": str(self.run_dir),
            "pids": {
                "router": pids.router,
                "harness": pids.harness,
                "stray": pids.stray,
                **{
                    name: {"http": engine.http, "scheduler": engine.scheduler, "detokenizer": engine.detokenizer}
                    for name, engine in pids.engines.items()
                },
            },
            "urls": {
                "router": self.url,
                "router_metrics": self.router_metrics_url,
                **{name: engine.url for name, engine in self.engines.items()},
            },
            "logs": {name: str(log) for name, log in self.logs.items()},
        }

    def truth(self) -> Truth:
        """What is in flight, by the clients' and the engines' own word (the router is not asked)."""
        requests: list[RequestTruth] = []
        completed = failed = 0
        for name in ("harness", "stray"):
            if not any(child.name == name for child in self.children):
                continue
            status = self.client(name, do="status")
            if name == "harness":
                completed, failed = status["completed"], status["failed"]
            requests += [
                RequestTruth(
                    client=name,
                    request_id=entry["request_id"],
                    state=entry["state"],
                    sent_at_monotonic=entry["sent_at_monotonic"],
                    sent_at_wall=entry["sent_at_wall"],
                    last_byte_monotonic=entry["last_byte_monotonic"],
                    bytes_in=entry["bytes_in"],
                )
                for entry in status["clients"]
                if entry["state"] in ("sent", "streaming")
            ]
        engines = {
            name: {**engine.http(do="status"), "scheduler": engine.scheduler(do="status")}
            for name, engine in self.engines.items()
        }
        return Truth(
            wedge=self.wedge.name, requests=tuple(requests), completed=completed, failed=failed, engines=engines
        )

    # -- wedges ------------------------------------------------------------------------------------------------------

    def enter(self, name: str, *, engine: str | None = None, under_load: bool = False) -> None:
        """Leave the present wedge and enter another; `wait_wedged` says when it is in force.

        Args:
            name: a name of `tests.bed.wedges.WEDGES`.
            engine: in which engine an engine's or a scheduler's wedge is; else the decode engine for the HTTP process,
                the prefill engine for the scheduler, or the first one of a regular bed.
            under_load: set the fault while the harness is being served, without a pause in between (only from "none").
        """
        wedge = find_wedge(name)
        wedge.check(self)
        if not (under_load and self.wedge.name == "none"):
            self.leave()
        self.wedge, self._entered = wedge, True
        self.chosen_engine = engine
        if wedge.stray or self.keep_stray:
            self._start_stray()
        wedge.enter(self)

    def leave(self) -> None:
        """Back to quiet ground: no fault, the harness parked, nothing in flight (but of a stray that is to stay)."""
        if not self._entered:
            return
        self._entered = False
        self.client("harness", do="cancel")
        if not self.keep_stray:
            self._stop_stray()
        self.wedge.leave(self)
        for engine in self.engines.values():
            engine.http(do="clear")
            engine.scheduler(do="clear")
        self.wait_for("the harness to be parked", lambda: self.client("harness", do="status")["in_flight"] == 0)
        self.wait_for("the engines to be empty", self._engines_empty)
        self.wait_for("the router to answer", self._router_answers)

    def wait_wedged(self, timeout_s: float = WEDGE_TIMEOUT_S, *, settled: bool = False) -> Truth:
        """Return once the wedge is in force, by the bed's own truth.

        Args:
            timeout_s: how long to wait.
            settled: wait until the engines have closed their idle keep-alive connections too (5 s), so that
            connections left over from before
                the wedge are gone.

        Raises:
            processes.BedError: the wedge is not in force after `timeout_s`.
        """
        self.wait_for(f"{self.wedge.name} to be in force", self.wedge.watcher(self), timeout_s=timeout_s)
        if settled:
            self.wait_for("idle connections to be closed", self._connections_settled, timeout_s=timeout_s)
        return self.truth()

    @contextlib.contextmanager
    def wedged(self, name: str, *, engine: str | None = None, under_load: bool = False) -> Iterator[Truth]:
        """Enter a wedge, wait until it is in force, and leave it at the end."""
        self.enter(name, engine=engine, under_load=under_load)
        try:
            yield self.wait_wedged()
        finally:
            self.leave()

    def client(self, name: str, **request: Any) -> dict[str, Any]:
        """Ask the harness or the stray client over its control channel."""
        return bedlink.ask(str(self.run_dir / f"{name}.ctl"), request)

    def signal_router(self, number: signal.Signals) -> None:
        os.kill(self.pids.router, number)

    # -- parts -------------------------------------------------------------------------------------------------------

    def _env(self, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self.run_dir),
            "TMPDIR": str(self.run_dir / "tmp"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            **more,
        }

    def _spawn(self, name: str, command: list[str], memory_mib: int, **env: str) -> None:
        child = processes.start(name, command, run_dir=self.run_dir, env=self._env(**env), memory_mib=memory_mib)
        self.children.append(child)

    def _start_engines(self) -> None:
        for engine in self.engines.values():
            metrics = self.run_dir / "tmp" / f"{engine.name}-metrics"
            metrics.mkdir()
            command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(self.run_dir / "model")]
            command += ["--host", "127.0.0.1", "--port", str(engine.port), "--enable-metrics", "--sleep-on-idle"]
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

    def _start_router(self) -> None:
        command = [
            sys.executable,
            "-m",
            "sglang_router.launch_router",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.router_port),
        ]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(self.router_metrics_port)]
        command += ["--log-level", "info", "--policy", "round_robin", "--worker-startup-check-interval", "1"]
        if self.regular:
            command += ["--worker-urls", *(engine.url for engine in self.engines.values())]
        else:
            prefill, decode = self.engines["prefill"], self.engines["decode"]
            command += [
                "--pd-disaggregation",
                "--prefill",
                prefill.url,
                str(prefill.bootstrap_port),
                "--decode",
                decode.url,
            ]
        self._spawn("router", command, ROUTER_MIB)

    def _start_client(self, name: str, program: str, url: str, **options: float) -> None:
        command = [
            sys.executable,
            str(PROGRAMS / program),
            "--url",
            url,
            "--control",
            str(self.run_dir / f"{name}.ctl"),
        ]
        command += ["--parent", str(os.getpid())]
        for option, value in options.items():
            command += [f"--{option}", str(value)]
        self._spawn(name, command, PYTHON_MIB)

    def _start_stray(self) -> None:
        if not any(child.name == "stray" for child in self.children):
            target = self.url if self.stray_via == "router" else list(self.engines.values())[-1].url
            self._start_client("stray", "stray_client.py", target)
            self._pids = None
        self.wait_for("the stray client to be up", lambda: self._reachable("stray"))
        self.client("stray", do="run")

    def _stop_stray(self) -> None:
        strays = [child for child in self.children if child.name == "stray"]
        processes.stop(strays)
        self.children = [child for child in self.children if child.name != "stray"]
        (self.run_dir / "stray.ctl").unlink(missing_ok=True)
        self._pids = None if strays else self._pids

    def _wait_up(self) -> None:
        def workers_registered() -> bool:
            answer = self._get(f"{self.url}/workers")
            workers = json.loads(answer)["workers"] if answer else []
            return len(workers) == len(self.engines) and all(worker["is_healthy"] for worker in workers)

        for engine in self.engines.values():
            self.wait_for(f"{engine.name} to be up", Path(engine.control).exists, timeout_s=START_TIMEOUT_S)
        self.wait_for("the router to know its workers", workers_registered, timeout_s=START_TIMEOUT_S)
        self.wait_for("the harness to be up", lambda: self._reachable("harness"), timeout_s=START_TIMEOUT_S)

    def wait_for(self, what: str, condition: Callable[[], bool], *, timeout_s: float = WEDGE_TIMEOUT_S) -> None:
        """Poll `condition`; BedError says `what` was waited for, or which process of the bed has ended."""
        processes.wait_for(what, condition, timeout_s=timeout_s, children=self.children)

    def _reachable(self, name: str) -> bool:
        try:
            self.client(name, do="status")
        except OSError:
            return False
        return True

    def _engines_empty(self) -> bool:
        allowed = 1 if self.keep_stray else 0
        empty = True
        for engine in self.engines.values():
            status = engine.http(do="look")
            queues = engine.scheduler(do="status")
            held = sum(queues[name] for name in queues if name.endswith("_reqs"))
            empty = empty and len(status["in_flight"]) <= allowed and held <= allowed
        return empty

    def _connections_settled(self) -> bool:
        """Whether every connection of an engine's HTTP process carries a request."""
        for engine in self.engines.values():
            status = engine.http(do="status")
            # A blocked event loop closes nothing.
            if not status["blocked"] and status["connections"] > len(status["in_flight"]):
                return False
        return True

    def _router_answers(self) -> bool:
        return self._get(f"{self.url}/health") is not None

    @staticmethod
    def _get(url: str) -> bytes | None:
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                body: bytes = response.read()
        except (urllib.error.URLError, OSError):
            return None
        return body


def sweep() -> None:
    """Remove run directories whose owner was killed before it could do so."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            with (folder / "owner").open("rb") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, being made, or somebody else's
