"""What this machine lacks to run an agent, as far as a client can tell: in the words of an agent's capabilities."""

from __future__ import annotations

import glob
import importlib.util
import os
import socket

from freezeframe.v1 import service_pb2

_State = service_pb2.Capability.State
# Packages of the extra, by the module that is imported.
_PACKAGES = ("structlog", "prometheus_client", "grpc_health", "grpc_reflection")


def capabilities() -> service_pb2.GetCapabilitiesResponse:
    """Look at packages, rights and system libraries."""
    return service_pb2.GetCapabilitiesResponse(
        host=socket.gethostname(), kernel=os.uname().release, capabilities=(_packages(), _rights(), _bcc(), _libdw())
    )


def _packages() -> service_pb2.Capability:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    return service_pb2.Capability(
        name="agent packages",
        state=_State.ABSENT if missing else _State.PRESENT,
        detail=f"missing: {', '.join(missing)}" if missing else "installed",
        hint="pip install 'freezeframe[agent]'" if missing else "",
    )


def _rights() -> service_pb2.Capability:
    root = os.geteuid() == 0
    return service_pb2.Capability(
        name="rights",
        state=_State.PRESENT if root else _State.LIMITED,
        detail="root" if root else "your own processes only",
        hint="" if root else "sudo freezeframe-agentd",
    )


def _bcc() -> service_pb2.Capability:
    found = glob.glob("/usr/lib/python3*/dist-packages/bcc") + glob.glob("/usr/lib/python3*/site-packages/bcc")
    return service_pb2.Capability(
        name="eBPF (python3-bpfcc)",
        state=_State.PRESENT if found else _State.ABSENT,
        detail=found[0] if found else "not installed",
        hint="" if found else "sudo apt-get install python3-bpfcc",
    )


def _libdw() -> service_pb2.Capability:
    found = glob.glob("/usr/lib/*/libdw.so.1") + glob.glob("/usr/lib64/libdw.so.1")
    return service_pb2.Capability(
        name="native stacks (libdw)",
        state=_State.PRESENT if found else _State.ABSENT,
        detail=found[0] if found else "not installed",
        hint="" if found else "sudo apt-get install libdw1",
    )
