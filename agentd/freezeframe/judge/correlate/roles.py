"""What each process is in the serving path: found from titles, command lines, parents and who connects to whom. Pure.

Sources of the names: SGLang's and vLLM's setproctitle titles (cut to 15 bytes in comm), the launch commands of their
HTTP processes, the titles and program names of the routers. What nobody names is found by structure: whoever listens
where a router connects is an engine, whoever connects to a router or an engine is a client, and a proxy when others
connect to it in turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from freezeframe.judge.model import Process, Socket

_Role = Process.Role

# Beginning of a title, or of the 15 bytes of comm -> role, product.
_TITLES: tuple[tuple[str, Process.Role, str], ...] = (
    ("sglang::router", _Role.ROUTER, "sglang-router"),
    ("smg::router", _Role.ROUTER, "smg"),
    ("sglang::schedul", _Role.SCHEDULER, "sglang"),
    ("sglang::detoken", _Role.DETOKENIZER, "sglang"),
    ("sglang::data_pa", _Role.DP_CONTROLLER, "sglang"),
    ("sglang::tokeniz", _Role.TOKENIZER_WORKER, "sglang"),
    ("sglang::server", _Role.LAUNCHER, "sglang"),
    ("VLLM::EngineCor", _Role.SCHEDULER, "vllm"),
    ("VLLM::Worker", _Role.WORKER, "vllm"),
)
# Program name -> role, product.
_PROGRAMS: Mapping[str, tuple[Process.Role, str]] = {
    "smg": (_Role.ROUTER, "smg"),
    "amg": (_Role.ROUTER, "smg"),
    "sgl-model-gateway": (_Role.ROUTER, "smg"),
    "sgl-router": (_Role.ROUTER, "sgl-router"),
    "vllm-router": (_Role.ROUTER, "vllm-router"),
}
# Words of a command line -> role, product. All of a row must be there, as whole arguments or the name of a script.
_COMMANDS: tuple[tuple[tuple[str, ...], Process.Role, str], ...] = (
    (("sglang_router.launch_router",), _Role.ROUTER, "sglang-router"),
    (("smg", "launch"), _Role.ROUTER, "smg"),
    (("sglang.launch_server",), _Role.ENGINE_HTTP, "sglang"),
    (("sglang", "serve"), _Role.ENGINE_HTTP, "sglang"),
    (("vllm", "serve"), _Role.ENGINE_HTTP, "vllm"),
    (("vllm.entrypoints.openai.api_server",), _Role.ENGINE_HTTP, "vllm"),
)
_PROXIES = frozenset({"nginx", "envoy", "haproxy", "caddy", "traefik", "httpd", "apache2"})
# They ask for metrics; their connections wait for nothing.
_SCRAPERS = frozenset({"prometheus", "telegraf", "vmagent", "grafana-agent", "alloy", "otelcol", "otelcol-contrib"})
_PARTS = frozenset({_Role.SCHEDULER, _Role.DETOKENIZER, _Role.DP_CONTROLLER, _Role.TOKENIZER_WORKER, _Role.WORKER})
_SERVERS = frozenset({_Role.ROUTER, _Role.ENGINE_HTTP, _Role.PROXY})
_RANK = re.compile(r"(?<![A-Za-z])(ATTN_CP|MOE_DP|DP|PP|TP|EP)(\d+)")
_DISAGGREGATION = "--disaggregation-mode"
# Generations between a part of an engine and its HTTP process: a controller, a spawner.
_GENERATIONS = 4


def assign_roles(
    processes: Sequence[Process],
    sockets: Sequence[Socket] = (),
    overrides: Mapping[int, Process.Role] = {},
) -> tuple[Process, ...]:
    """Give each process its role, role_reason, product, engine_pid, disaggregation, rank and listening_ports."""
    named = {process.pid: _by_name(process) for process in processes}
    _engines_by_children(named)
    for pid, role in overrides.items():
        if pid in named:
            named[pid] = replace(named[pid], role=role, role_reason="configured")
    _by_structure(named, sockets)
    for pid, process in named.items():
        engine = _engine_of(process, named)
        named[pid] = process if engine is None else replace(process, engine_pid=engine.pid, product=engine.product)
    for pid, process in named.items():
        engine = named.get(process.engine_pid)
        named[pid] = replace(process, disaggregation=_disaggregation(engine)) if engine is not None else process
    return tuple(named[process.pid] for process in processes)


def serving_processes(
    processes: Sequence[Process],
    sockets: Sequence[Socket] = (),
    overrides: Mapping[int, Process.Role] = {},
) -> tuple[Process, ...]:
    """Those that take part in serving, or talk to one that does, with their roles."""
    return tuple(each for each in assign_roles(processes, sockets, overrides) if each.role is not _Role.OTHER)


def _by_name(process: Process) -> Process:
    base = replace(process, role=_Role.OTHER, role_reason="", engine_pid=0, rank="", disaggregation="")
    for name, source in ((process.title, "title"), (process.comm, "thread name")):
        for beginning, role, product in _TITLES:
            if name.startswith(beginning):
                rank = " ".join(f"{kind}{number}" for kind, number in _RANK.findall(process.title))
                return replace(base, role=role, product=product, rank=rank, role_reason=f"{source} {beginning}")
    program = _program(process)
    if program in _PROGRAMS:
        role, product = _PROGRAMS[program]
        return replace(base, role=role, product=product, role_reason=f"program {program}")
    words = {argument.rpartition("/")[2] for argument in process.argv[:6]}
    for wanted, role, product in _COMMANDS:
        if words.issuperset(wanted):
            return replace(base, role=role, product=product, role_reason=f"command line {' '.join(wanted)}")
    return base


def _program(process: Process) -> str:
    return process.exe.removesuffix(" (deleted)").rpartition("/")[2] or process.comm


def _engines_by_children(named: dict[int, Process]) -> None:
    """The parent of a scheduler, over a controller or not, is the HTTP process, whatever its command line says.

    A child of a process that is already known as HTTP process is not one itself, though it inherits its command line.
    """
    for process in list(named.values()):
        if process.role is _Role.ENGINE_HTTP and _ancestor(process, named, _Role.ENGINE_HTTP) is not None:
            named[process.pid] = replace(process, role=_Role.OTHER, role_reason="")
    for process in list(named.values()):
        if process.role is not _Role.SCHEDULER:
            continue
        parent = named.get(process.parent_pid)
        if parent is not None and parent.role is _Role.DP_CONTROLLER:
            parent = named.get(parent.parent_pid)
        if parent is not None and parent.role in (_Role.OTHER, _Role.LAUNCHER) and parent.pid > 1:
            reason = f"parent of {process.title or process.comm}"
            named[parent.pid] = replace(parent, role=_Role.ENGINE_HTTP, product=process.product, role_reason=reason)


def _ancestor(process: Process, named: Mapping[int, Process], role: Process.Role) -> Process | None:
    for _ in range(_GENERATIONS):
        parent = named.get(process.parent_pid)
        if parent is None or parent.pid == process.pid:
            return None
        if parent.role is role:
            return parent
        process = parent
    return None


def _engine_of(process: Process, named: Mapping[int, Process]) -> Process | None:
    if process.role is _Role.ENGINE_HTTP:
        return process
    return _ancestor(process, named, _Role.ENGINE_HTTP) if process.role in _PARTS else None


def _disaggregation(engine: Process) -> str:
    arguments = engine.argv
    for place, argument in enumerate(arguments):
        flag, separator, value = argument.partition("=")
        if flag == _DISAGGREGATION:
            found = value if separator else arguments[place + 1] if place + 1 < len(arguments) else ""
            return found if found in ("prefill", "decode") else ""
    return ""


def _by_structure(named: dict[int, Process], sockets: Sequence[Socket]) -> None:
    for pid, ports in _listening(sockets).items():
        if pid in named:
            named[pid] = replace(named[pid], listening_ports=tuple(sorted(ports)))
    calls = _calls(sockets)
    _unnamed_engines(named, calls)
    # Clients and proxies, outwards from the servers: whoever asks a proxy is a client too.
    for _ in range(_GENERATIONS):
        if not _find_clients(named, calls):
            return


def _listening(sockets: Sequence[Socket]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for each in sockets:
        if each.family == "tcp" and each.pid is not None and each.state == "LISTEN":
            found.setdefault(each.pid, set()).add(_port(each.local))
    return found


def _calls(sockets: Sequence[Socket]) -> dict[int, set[int]]:
    """Process -> processes that it has connected to."""
    found: dict[int, set[int]] = {}
    for each in sockets:
        if each.family != "tcp" or each.pid is None or each.peer_pid is None or each.pid == each.peer_pid:
            continue
        client, server = (each.peer_pid, each.pid) if each.accepted else (each.pid, each.peer_pid)
        found.setdefault(client, set()).add(server)
    return found


def _unnamed_engines(named: dict[int, Process], calls: Mapping[int, set[int]]) -> None:
    """Whoever listens where a router connects is an engine of a kind that nothing names."""
    for pid in [process.pid for process in named.values() if process.role is _Role.ROUTER]:
        for server in calls.get(pid, ()):
            found = named.get(server)
            if found is not None and found.role is _Role.OTHER and found.listening_ports:
                reason = f"listens where the router (pid {pid}) connects"
                named[server] = replace(found, role=_Role.ENGINE_HTTP, role_reason=reason)


def _find_clients(named: dict[int, Process], calls: Mapping[int, set[int]]) -> bool:
    """One step outwards; whether anybody was found."""
    changed = False
    asked = {server for servers in calls.values() for server in servers}
    for pid, servers in calls.items():
        process = named.get(pid)
        if process is None or process.role is not _Role.OTHER or _program(process) in _SCRAPERS:
            continue
        known = [named[server] for server in sorted(servers) if server in named and named[server].role in _SERVERS]
        if not known:
            continue
        is_proxy = _program(process) in _PROXIES or (pid in asked and bool(process.listening_ports))
        reason = f"connects to the {known[0].role.name.lower().replace('_', '-')} (pid {known[0].pid})"
        named[pid] = replace(process, role=_Role.PROXY if is_proxy else _Role.CLIENT, role_reason=reason)
        changed = True
    return changed


def _port(address: str) -> int:
    digits = address.rpartition(":")[2]
    return int(digits) if digits.isdecimal() else 0
