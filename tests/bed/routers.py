"""The real routers that a bed can have, and their command lines."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.bed.parts import Engine

NATIVE_NAME = "smg-native"
NATIVE = Path(__file__).parent / "programs" / "native_router.c"


@dataclass(frozen=True, kw_only=True)
class Router:
    """One product, started as a program of its own."""

    name: str
    product: str
    start: tuple[str, ...]
    """What starts it, up to its flags."""
    title: str
    """What it calls itself in /proc/PID/cmdline."""
    waits_for_both_legs: bool
    """Whether it goes on waiting for one leg of a pair when the other has failed."""
    queues: bool
    """Whether --max-concurrent-requests limits what is under way and the rest waits inside; else it limits the rate."""

    env: Mapping[str, str] = field(default_factory=dict)

    def command(self, port: int, metrics_port: int, engines: Iterable[Engine], flags: Iterable[str]) -> list[str]:
        """Command line of a router over these engines, which may be a pair or unified."""
        command = [*self.start, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
        command += ["--log-level", "info", "--policy", "round_robin", "--worker-startup-check-interval", "1", *flags]
        regular = [engine.url for engine in engines if engine.role == "null"]
        if regular:
            return [*command, "--worker-urls", *regular]
        command.append("--pd-disaggregation")
        for engine in engines:
            bootstrap = [str(engine.bootstrap_port)] if engine.role == "prefill" else []
            command += [f"--{engine.role}", engine.url, *bootstrap]
        return command


_ALL = (
    Router(
        name="sglang-router",
        product="sglang-router",
        start=(sys.executable, "-m", "sglang_router.launch_router"),
        title="sglang::router",
        waits_for_both_legs=True,
        queues=False,
    ),
    Router(
        name="smg",
        product="smg",
        start=(sys.executable, "-m", "smg.launch_router"),
        title="smg::router",
        waits_for_both_legs=False,
        queues=True,
    ),
)
ROUTERS: dict[str, Router] = {router.name: router for router in _ALL}


def native(folder: Path) -> Router:
    """smg as an ELF program, built into `folder`; needs gcc and Python's headers and library."""
    program = folder / "smg"
    library = Path(sysconfig.get_config_var("LIBDIR"))
    name = f"python{sys.version_info.major}.{sys.version_info.minor}{sys.abiflags}"
    command = ["gcc", "-O1", "-Wall", "-Werror", f"-I{sysconfig.get_path('include')}", str(NATIVE), "-o", str(program)]
    command += [f"-L{library}", f"-Wl,-rpath,{library}", f"-l{name}", "-lm", "-ldl", "-lpthread", "-lutil"]
    subprocess.run(command, check=True)
    return replace(
        ROUTERS["smg"],
        name=NATIVE_NAME,
        start=(str(program), "launch"),
        title=str(program),
        env={"PYTHONPATH": sysconfig.get_path("purelib")},
    )
