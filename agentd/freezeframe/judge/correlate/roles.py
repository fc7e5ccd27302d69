"""What each process is in the serving path: found from names, parents and who connects to whom. Pure.

In this order, each step only over what the ones before left open:

1. configuration;
2. names: title, program, own command line (`names`);
3. families: the parent of a scheduler is the HTTP process of its engine; what a leader forked belongs to it;
4. whoever listens where a router connects is an engine, of whatever kind; where neither router nor engine has a name,
   so is a plain HTTP service of Python;
5. outwards from routers and engines, along connections to their API ports: clients, and proxies, which others connect
   to in turn. Scrapers, launchers and supervisors are none, and neither are those who only ask a metrics port.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from freezeframe.judge.correlate import names
from freezeframe.judge.correlate.joined import addresses, number_of, own_pid
from freezeframe.judge.correlate.names import flag_values
from freezeframe.judge.model import Metric, Process, Socket

Role = Process.Role

_PARTS = frozenset({Role.SCHEDULER, Role.DETOKENIZER, Role.DP_CONTROLLER, Role.TOKENIZER_WORKER, Role.WORKER})
# Generations from a part of an engine to its HTTP process (controller, spawner), and of proxies before a router.
_GENERATIONS = 6
# Ports of a product that are not its API where no flag says otherwise: metrics, disaggregation bootstrap.
_SIDE_PORTS = frozenset({29000, 8998})
_SIDE_FLAGS = ("--prometheus-port", "--metrics-port", "--disaggregation-bootstrap-port", "--health-check-port")
_DEFAULT_PORTS = {"sglang": 30000, "sglang-router": 30000, "smg": 30000, "sgl-router": 30000, "vllm": 8000}
_WORKER_FLAGS = ("--worker-urls", "--worker-url", "--prefill", "--decode")
_KINDS = ("prefill", "decode")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """TCP connections from one process of this host to another."""

    server: int
    # The server's port.
    port: int


def assign_roles(
    processes: Sequence[Process],
    sockets: Sequence[Socket] = (),
    overrides: Mapping[int, Process.Role] = {},
    metrics: Sequence[Metric] = (),
) -> tuple[Process, ...]:
    """Give each process its role, role_reason, product, engine_pid, disaggregation, rank and listening_ports.

    `overrides` has roles by pid, as configured. Processes come back in their order, those of no role as OTHER.
    """
    search = _Search(processes, sockets)
    search.configured(overrides)
    search.named()
    search.families()
    search.unnamed_engines()
    search.plain_services()
    search.outwards()
    search.engines(metrics)
    return tuple(search.found[process.pid] for process in processes)


def serving_processes(
    processes: Sequence[Process],
    sockets: Sequence[Socket] = (),
    overrides: Mapping[int, Process.Role] = {},
    metrics: Sequence[Metric] = (),
) -> tuple[Process, ...]:
    """Those that take part in serving or talk to one that does, with their roles, in their order."""
    found = assign_roles(processes, sockets, overrides, metrics)
    return tuple(process for process in found if process.role is not Role.OTHER or process.engine_pid)


def as_client(process: Process, server: str) -> Process:
    """The process as a client of a server on another host ("10.0.0.2:30000")."""
    return replace(process, role=Role.CLIENT, role_reason=f"connects to {server} of another host")


class _Search:
    """The state of one search; each step fills `found` further."""

    def __init__(self, processes: Sequence[Process], sockets: Sequence[Socket]) -> None:
        ports = _listening(sockets)
        self.found: dict[int, Process] = {
            process.pid: replace(
                process,
                role=Role.OTHER,
                role_reason="",
                product="",
                engine_pid=0,
                rank="",
                disaggregation="",
                listening_ports=tuple(sorted(ports.get(process.pid, ()))) or process.listening_ports,
            )
            for process in processes
        }
        self._sockets = sockets
        self._configured: frozenset[int] = frozenset()
        # By client.
        self._calls = _calls(sockets)
        # Established connections that a process has accepted, by its port.
        self._accepted: dict[int, Counter[int]] = {}
        for each in sockets:
            if each.family == "tcp" and each.accepted and each.state == "ESTAB" and each.pid is not None:
                self._accepted.setdefault(each.pid, Counter())[_port(each.local)] += 1

    def configured(self, overrides: Mapping[int, Process.Role]) -> None:
        """Step 1."""
        for pid, role in overrides.items():
            self._set(pid, role, "configured")
        self._configured = frozenset(overrides)

    def named(self) -> None:
        """Step 2."""
        for pid, process in self.found.items():
            by_name = names.find_named(process)
            if by_name is None:
                continue
            self._set(pid, by_name.role, by_name.reason)
            self.found[pid] = replace(self.found[pid], product=by_name.product, rank=by_name.rank)

    def families(self) -> None:
        """Step 3."""
        for process in list(self.found.values()):
            if process.role not in {Role.ENGINE_HTTP, Role.ROUTER} or not process.role_reason.startswith("command"):
                continue
            leader = self._ancestor(process, {process.role})
            if leader is not None and leader.exe == process.exe:
                # A fork shows its parent's command line.
                role = Role.WORKER if process.role is Role.ENGINE_HTTP else Role.OTHER
                self._set(process.pid, role, f"forked by pid {leader.pid}", force=True)
        for process in list(self.found.values()):
            if process.role not in {Role.SCHEDULER, Role.DETOKENIZER}:
                continue
            parent = self.found.get(process.parent_pid)
            if parent is not None and parent.role is Role.DP_CONTROLLER:
                parent = self.found.get(parent.parent_pid)
            if (
                parent is not None
                and own_pid(parent.pid) > 1
                and parent.exe == process.exe
                and parent.role is Role.OTHER
            ):
                self._set(parent.pid, Role.ENGINE_HTTP, f"parent of {process.title or process.comm}", process.product)

    def unnamed_engines(self) -> None:
        """Step 4."""
        for router in [process for process in self.found.values() if process.role is Role.ROUTER]:
            told = {_port(url) for url in flag_values(router.argv, *_WORKER_FLAGS)}
            for call in self._calls.get(router.pid, ()):
                server = self.found.get(call.server)
                if server is None or server.role is not Role.OTHER:
                    continue
                by = names.program_names(server)
                if by & names.PROXIES.keys() or (by & names.SERVICES and call.port not in told):
                    continue
                if self._passes_on(server.pid, router.pid):
                    continue  # a gateway between router and engine
                self._set(server.pid, Role.ENGINE_HTTP, f"listens where the router (pid {router.pid}) connects")

    def plain_services(self) -> None:
        """Step 4, where nobody is known to serve a model: a gateway or a dashboard beside a known one is no engine."""
        if any(process.role in {Role.ROUTER, Role.ENGINE_HTTP} for process in self.found.values()):
            return
        for pid, process in self.found.items():
            command = names.command_of(process.argv)[0].rpartition("/")[2]
            if command in names.HTTP_SERVERS and process.argv_source == "own":
                self._set(pid, Role.ENGINE_HTTP, f"command {command}, and no engine has a name", command)

    def outwards(self) -> None:
        """Step 5, one hop further each time."""
        supervisors = self._supervisors()
        for _ in range(_GENERATIONS):
            before = dict(self.found)
            for pid in self._calls:
                process = self.found.get(pid)
                if process is not None and process.role is Role.OTHER and not self._ignored(process, supervisors):
                    self._judge_caller(process)
            if self.found == before:
                break
        self._proxy_families()

    def engines(self, metrics: Sequence[Metric]) -> None:
        """Tell each part its engine, and each engine what it does in a disaggregated pair."""
        for pid, process in self.found.items():
            if process.role is Role.ENGINE_HTTP:
                self.found[pid] = replace(process, engine_pid=pid)
                continue
            leader = self._ancestor(process, {Role.ENGINE_HTTP})
            if leader is not None and process.role in _PARTS | {Role.OTHER}:
                product = process.product or leader.product
                reason = process.role_reason or f"child of the engine (pid {leader.pid})"
                self.found[pid] = replace(process, engine_pid=leader.pid, product=product, role_reason=reason)
        labels = {
            metric.pid: dict(metric.labels).get("engine_type", "")
            for metric in metrics
            if metric.pid is not None and dict(metric.labels).get("engine_type") in _KINDS
        }
        told = self._told_by_routers()
        for pid, process in self.found.items():
            if process.engine_pid:
                leader = self.found.get(process.engine_pid, process)
                own = flag_values(leader.argv, "--disaggregation-mode")[:1]
                kind = own[0] if own and own[0] in _KINDS else labels.get(leader.pid) or told.get(leader.pid, "")
                self.found[pid] = replace(process, disaggregation=kind)

    def _set(self, pid: int, role: Process.Role, reason: str, product: str = "", *, force: bool = False) -> None:
        process = self.found.get(pid)
        if process is not None and pid not in self._configured and (force or process.role is Role.OTHER):
            self.found[pid] = replace(process, role=role, role_reason=reason, product=product or process.product)

    def _ancestor(self, process: Process, roles: Iterable[Process.Role]) -> Process | None:
        wanted = frozenset(roles)
        for _ in range(_GENERATIONS):
            parent = self.found.get(process.parent_pid)
            if parent is None or parent.pid == process.pid:
                return None
            if parent.role in wanted:
                return parent
            process = parent
        return None

    def _passes_on(self, pid: int, router: int) -> bool:
        """Whether it has connections to the API of an engine or of another router: one to `router` may register it."""
        servers = {Role.ROUTER, Role.ENGINE_HTTP}
        return any(call.server != router and self._is_api(call, servers) for call in self._calls.get(pid, ()))

    def _is_api(self, call: _Call, roles: Iterable[Process.Role]) -> bool:
        server = self.found.get(call.server)
        return server is not None and server.role in roles and call.port in api_ports(server)

    def _supervisors(self) -> frozenset[int]:
        """Ancestors of routers and engines that only start programs."""
        found = set()
        for process in self.found.values():
            if process.role not in {Role.ROUTER, Role.ENGINE_HTTP}:
                continue
            parent = self.found.get(process.parent_pid)
            for _ in range(_GENERATIONS):
                if parent is None:
                    break
                if names.program_names(parent) & names.SUPERVISORS:
                    found.add(parent.pid)
                parent = self.found.get(parent.parent_pid)
        return frozenset(found)

    def _ignored(self, process: Process, supervisors: frozenset[int]) -> bool:
        by = names.program_names(process)
        if by & names.WATCHERS or any(name.startswith("freezeframe.agentd") for name in by):
            return True
        return process.pid in supervisors or self._ancestor(process, {Role.ENGINE_HTTP}) is not None

    def _judge_caller(self, process: Process) -> None:
        servers = frozenset({Role.ROUTER, Role.ENGINE_HTTP, Role.PROXY, Role.TOKENIZER_WORKER})
        upstream = {call: count for call, count in self._calls[process.pid].items() if self._is_api(call, servers)}
        if not upstream:
            return
        server = self.found[next(iter(upstream)).server]
        reason = f"connects to the {server.role.name.lower().replace('_', '-')} (pid {server.pid})"
        by = names.program_names(process)
        product = next((names.PROXIES[name] for name in sorted(by) if name in names.PROXIES), "")
        # What nobody names is a proxy when, on one port, at least as many connections come in as go out: a notebook or
        # a harness with a status page is none.
        taken = max(self._accepted.get(process.pid, Counter()).values(), default=0)
        is_proxy = bool(product) or taken >= sum(upstream.values())
        self._set(process.pid, Role.PROXY if is_proxy else Role.CLIENT, reason, product)

    def _proxy_families(self) -> None:
        """The master and the idle workers of a proxy: the same program, parent or child."""
        for proxy in [process for process in self.found.values() if process.role is Role.PROXY and process.product]:
            if proxy.title.startswith("ray::"):
                continue  # every actor of Ray is the same program
            for pid, process in self.found.items():
                related = pid == proxy.parent_pid or process.parent_pid in {proxy.pid, proxy.parent_pid}
                if related and process.exe == proxy.exe and process.exe:
                    self._set(pid, Role.PROXY, f"same program as the proxy (pid {proxy.pid})", proxy.product)

    def _told_by_routers(self) -> dict[int, str]:
        """Engine -> "prefill" or "decode", where a router's flags say it of a port of its host."""
        known = addresses(self._sockets)
        found = {}
        for router in self.found.values():
            if router.role is not Role.ROUTER:
                continue
            called = {(call.server, call.port) for call in self._calls.get(router.pid, ())}
            for kind in _KINDS:
                for url in flag_values(router.argv, f"--{kind}"):
                    for pid, process in self.found.items():
                        listens = process.role is Role.ENGINE_HTTP and _port(url) in process.listening_ports
                        own = _host(url) in _LOOPBACK and number_of(pid) == number_of(router.pid)
                        here = own or _host(url) in known.get(number_of(pid), ())
                        if listens and (here or (pid, _port(url)) in called):
                            found[pid] = kind
        return found


def api_ports(process: Process) -> frozenset[int]:
    """Ports on which a server takes requests: what its flags say, else its product's, else all but the side ones."""
    ports = frozenset(process.listening_ports)
    told = {int(value) for value in flag_values(process.argv, "--port") if value.isdecimal()}
    if told & ports:
        return ports & told
    default = _DEFAULT_PORTS.get(process.product)
    if default in ports:
        return frozenset({default})
    side = {int(value) for value in flag_values(process.argv, *_SIDE_FLAGS) if value.isdecimal()}
    return ports - side - _SIDE_PORTS


def _listening(sockets: Sequence[Socket]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for each in sockets:
        if each.family == "tcp" and each.state == "LISTEN" and each.pid is not None:
            for pid in (each.pid, *each.shared_with):
                found.setdefault(pid, set()).add(_port(each.local))
    return found


def _calls(sockets: Sequence[Socket]) -> dict[int, Counter[_Call]]:
    """Client -> its connections to other processes of this host, each counted once though both ends are listed.

    The port is the server's own, also where the client connects to a published one.
    """
    by_inode = {each.inode: each for each in sockets if each.family == "tcp" and each.inode}
    listening = {
        (each.netns, _port(each.local)): each.pid for each in sockets if each.family == "tcp" and each.state == "LISTEN"
    }
    found: dict[int, Counter[_Call]] = {}
    seen = set()
    for each in sockets:
        if each.family != "tcp" or each.state == "LISTEN" or each.pid is None:
            continue
        if each.peer_pid is None:
            # The server has closed its end, or has not accepted it: its listener tells who it is.
            server = listening.get((each.netns, _port(each.remote)))
            here = _host(each.local) == _host(each.remote) and (each.netns, _port(each.local)) not in listening
            if here and not each.accepted and server is not None and server != each.pid:
                found.setdefault(each.pid, Counter())[_Call(server=server, port=_port(each.remote))] += 1
            continue
        ends = (each.netns, frozenset({each.local, each.remote}))
        if each.inode and each.peer_inode:
            # In different namespaces, or through a published port, each end has addresses of its own.
            ends = (0.0, frozenset({str(each.inode), str(each.peer_inode)}))
        if each.pid == each.peer_pid or ends in seen:
            continue
        seen.add(ends)
        other = by_inode.get(each.peer_inode or 0)
        ours, theirs = _port(each.local), _port(each.remote if other is None else other.local)
        place = each.netns if other is None else other.netns
        accepted = each.accepted or ((each.netns, ours) in listening and (place, theirs) not in listening)
        client, server, port = (each.peer_pid, each.pid, ours) if accepted else (each.pid, each.peer_pid, theirs)
        found.setdefault(client, Counter())[_Call(server=server, port=port)] += 1
    return found


def _port(address: str) -> int:
    """Port of "127.0.0.1:30000", "[::1]:30000" or "http://host:30000/v1"; 0 when there is none."""
    digits = address.rpartition("://")[2].partition("/")[0].rpartition(":")[2]
    return int(digits) if digits.isdecimal() else 0


def _host(address: str) -> str:
    return address.rpartition("://")[2].partition("/")[0].rpartition(":")[0].strip("[]")
