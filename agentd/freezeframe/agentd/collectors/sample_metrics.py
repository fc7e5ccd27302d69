"""sample_metrics: gauges and counters of engines and routers, and which of their passive endpoints answer, how fast.

Asks over HTTP, on an address of this host that the target itself listens on, the endpoints of `ENDPOINTS` and no
others: each is answered by the server's own loop, without its scheduler, without a worker, without a change of state.
(SGLang's /health and /server_info are not among them: both wait for the scheduler.) /v1/loads is asked only of a SGLang
that publishes its load in shared memory: an older one asks its scheduler.

Cost to the target: one short request per endpoint and look. The first endpoint of a listener is asked alone and the
others only once it answered, so a server that has stopped accepting is left with one connection in its queue; it is not
asked again while that one is still there, and a stopped process is not asked at all. Each question has one second.

A target in another network namespace is asked from inside it, which needs CAP_SYS_ADMIN. Cannot see: a listener that
speaks TLS, and an engine whose HTTP port is unclear (it has several listeners, none on the usual port): what speaks
another protocol must never get an HTTP request. Values over HTTP carry no age: a gauge is what its process last wrote.
"""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from freezeframe.agentd.collectors.contract import Collector, Report, Tier, UnavailableError
from freezeframe.agentd.host import Host, descriptors, exposition, http_probe, procfs, sock_diag
from freezeframe.agentd.host.http_probe import PROBE_SOURCE, Answer, Question
from freezeframe.agentd.host.sock_diag import LISTEN, TcpSocket
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.correlate.thresholds import EARLIER_QUESTION
from freezeframe.judge.model import Endpoint, Metric, Process, Snapshot

# A question that has waited for so long in an accept queue is not just on its way, milliseconds.
_STANDS_MS = 500
LIVENESS, METRICS, WORKERS, LOADS, HEALTH = "liveness", "metrics", "workers", "loads", "health"

# What may be asked, by product: (path, purpose), the first alone. A router's metrics have their own port.
ENDPOINTS: dict[str, tuple[tuple[str, str], ...]] = {
    "sglang": (("/model_info", LIVENESS), ("/metrics", METRICS), ("/v1/loads", LOADS)),
    # vLLM's /health only reads a flag.
    "vllm": (("/version", LIVENESS), ("/metrics", METRICS), ("/health", HEALTH)),
    "sglang-router": (("/liveness", LIVENESS), ("/readiness", HEALTH), ("/workers", WORKERS)),
    "smg": (("/liveness", LIVENESS), ("/readiness", HEALTH), ("/workers", WORKERS)),
}
METRICS_LISTENER: tuple[tuple[str, str], ...] = (("/metrics", METRICS),)
USUAL_PORTS = {"sglang": (30000,), "vllm": (8000,), "sglang-router": (30000,), "smg": (30000,)}
USUAL_METRICS_PORTS = {"sglang-router": (29000,), "smg": (29000,)}

ANSWER_S = 1.0
# Frameworks that serve HTTP ask for a long accept queue (uvicorn 2048, axum 4096); ZeroMQ's is 100, aiohttp's 128.
_HTTP_BACKLOG = 1000
# Of a router with two listeners alike the one with the lower descriptor serves its metrics: smg opens it first.
_TWO_LISTENERS = 2
_TWICE = frozenset({METRICS, WORKERS, LOADS})
_ROLES = frozenset({Process.Role.ROUTER, Process.Role.ENGINE_HTTP})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """One endpoint of one target."""

    pid: int
    address: str
    question: Question
    purpose: str

    @property
    def source(self) -> str:
        return f"http {self.address}{self.question.path}"


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over Endpoint and Metric records; see the module docstring."""
    report.doing("asking the kernel for listeners")
    plans = _plans(job.targets, _Namespaces(host, report), host, report)
    for pid in {target.pid for target in job.targets} - {plan[0].pid for plan in plans}:
        report.done(pid)
    _Looks(plans, job, host, report).take()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Namespace:
    """Listeners of one network namespace."""

    # To ask from inside; empty for the agent's own.
    path: str
    # By inode.
    listeners: dict[int, TcpSocket]
    # Ports of listeners that still have a question of ours in their accept queue.
    waiting: frozenset[int]


class _Namespaces:
    """The network namespaces of the targets, each looked at once."""

    def __init__(self, host: Host, report: Report) -> None:
        self._host = host
        self._report = report
        self._own = procfs.network_namespace(host.proc("self"))
        self._known: dict[int, _Namespace | None] = {}

    def of(self, pid: int) -> _Namespace | None:
        """That of a process; None where it may not be entered. Raises ProcfsError, UnavailableError."""
        number = procfs.network_namespace(self._host.proc(pid))
        if number not in self._known:
            self._known[number] = self._look("" if number == self._own else self._host.proc(pid, "ns", "net"), pid)
        return self._known[number]

    def _look(self, path: str, pid: int) -> _Namespace | None:
        try:
            sockets = sock_diag.tcp_sockets(path)
        except sock_diag.SockDiagError as error:
            if not path:
                raise UnavailableError(str(error), "load tcp_diag: modprobe tcp_diag") from error
            self._report.partial(
                f"endpoints in the network namespace of pid {pid} are not asked: {error.strerror}",
                "grant CAP_SYS_ADMIN",
            )
            return None
        return _Namespace(
            path=path,
            listeners={each.inode: each for each in sockets if each.state == LISTEN},
            waiting=frozenset(each.local_port for each in sockets if _stands(each)),
        )


class _Looks:
    """Both looks: each listener's second one comes a window after its own first, whoever else is silent meanwhile."""

    def __init__(self, plans: list[list[_Ask]], job: Job, host: Host, report: Report) -> None:
        self._host = host
        self._report = report
        self._window_s = job.window_ms / 1000.0
        self._prober = http_probe.Prober(
            timeout_s=ANSWER_S, body_bytes=job.caps.metric_bytes, monotonic=host.clock.monotonic
        )
        self._asks = {ask.question: ask for plan in plans for ask in plan}
        # What to ask once the first endpoint of a listener has answered.
        self._after = {plan[0].question: plan[1:] for plan in plans}
        # Values of the first look, by question.
        self._before: dict[Question, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
        self._left = Counter(ask.pid for plan in plans for ask in plan)

    def take(self) -> None:
        for question in self._after:
            self._prober.ask(question)
        self._report.doing("asking " + ", ".join(self._asks[question].source for question in list(self._after)[:4]))
        for question, answer in self._prober.answers():
            ask = self._asks[question]
            metrics = self._hand_over(ask, answer)
            before = self._before.get(question)
            if before is None:
                self._first(ask, answer, metrics)
            metrics = [_with_delta(metric, before or {}) for metric in metrics]
            self._report.part(Snapshot(metrics=tuple(metrics)))

    def _hand_over(self, ask: _Ask, answer: Answer) -> list[Metric]:
        metrics, error = _read(ask, answer, self._host.clock.wall())
        endpoint = Endpoint(
            pid=ask.pid,
            address=ask.address,
            path=ask.question.path,
            status=answer.status,
            duration_ms=answer.duration_ms,
            error=answer.error or error,
            purpose=ask.purpose,
        )
        self._report.part(Snapshot(endpoints=(endpoint,)))
        return metrics

    def _first(self, ask: _Ask, answer: Answer, metrics: list[Metric]) -> None:
        """Go on from the first answer to a question."""
        self._before[ask.question] = {(metric.name, metric.labels): metric.value for metric in metrics}
        after = self._after.get(ask.question, [])
        if answer.status:
            for other in after:
                self._prober.ask(other.question)
        else:
            why = f"{ask.question.path} was silent"
            self._report.part(Snapshot(endpoints=tuple(_not_asked(other, why) for other in after)))
            self._left[ask.pid] -= len(after)
        if metrics and self._window_s and ask.purpose in _TWICE:
            self._prober.ask(ask.question, delay_s=self._window_s)
        self._left[ask.pid] -= 1
        if not self._left[ask.pid]:
            self._report.done(ask.pid)


def _with_delta(metric: Metric, before: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> Metric:
    was = before.get((metric.name, metric.labels))
    return metric if was is None else replace(metric, delta=metric.value - was)


def _read(ask: _Ask, answer: Answer, wall: float) -> tuple[list[Metric], str]:
    """Metrics in an answer, and what is wrong with it."""
    if answer.status != 200:  # noqa: PLR2004
        return [], ""
    body = answer.body
    try:
        if ask.purpose == METRICS:
            # A cut text ends in half a line.
            whole = body[: body.rfind(b"\n") + 1] if answer.error else body
            metrics, left_out = exposition.parse_metrics(whole, ask.pid, ask.source)
            return metrics, f"{left_out} series left out" if left_out else ""
        if ask.purpose == WORKERS:
            return exposition.parse_workers(body, ask.pid, ask.source), ""
        if ask.purpose == LOADS:
            return exposition.parse_loads(body, ask.pid, ask.source, wall), ""
    except ValueError as error:
        return [], str(error)
    return [], ""


def _not_asked(ask: _Ask, why: str) -> Endpoint:
    return Endpoint(
        pid=ask.pid, address=ask.address, path=ask.question.path, error=f"not asked: {why}", purpose=ask.purpose
    )


def _plans(targets: Iterable[Target], namespaces: _Namespaces, host: Host, report: Report) -> list[list[_Ask]]:
    """Per listener the endpoints to ask; hands over those that are left alone, with why."""
    plans = []
    # Several processes may share a listener, or an address.
    asked: set[tuple[str, str]] = set()
    for target in targets:
        try:
            state = procfs.stat(host.proc(target.pid)).state
            namespace = namespaces.of(target.pid)
            inodes = descriptors.sockets_of(host.proc(target.pid))
        except procfs.GoneError:
            continue
        except (procfs.ProcfsError, OSError) as error:
            report.missed(target.pid, f"finding its listeners: {error}")
            continue
        if namespace is None:
            continue
        known = (namespace.listeners.get(inode) for inode in inodes)
        mine = [each for each in known if each is not None and (namespace.path, each.local) not in asked]
        asked |= {(namespace.path, listener.local) for listener in mine}
        for listener, endpoints in _choose(target, mine, host, report):
            plan = [_ask(target, namespace, listener, path, purpose) for path, purpose in endpoints]
            why = ""
            if state in ("T", "t"):
                why = "the process is stopped"
            elif listener.local_port in namespace.waiting:
                why = EARLIER_QUESTION
            if why:
                report.part(Snapshot(endpoints=tuple(_not_asked(ask, why) for ask in plan)))
            else:
                plans.append(plan)
    return plans


def _stands(one: TcpSocket) -> bool:
    """Whether this is a question of ours, or of another agent on this host, that was not accepted for long.

    A younger one may just be on its way.
    """
    ours = not one.inode and one.remote.startswith(f"{PROBE_SOURCE}:") and one.state in ("ESTAB", "CLOSE-WAIT")
    return ours and one.info is not None and one.info.last_data_received_ms >= _STANDS_MS


def _ask(target: Target, namespace: _Namespace, listener: TcpSocket, path: str, purpose: str) -> _Ask:
    host, _, port = listener.local.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))  # noqa: S104 - what it listens on
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    question = Question(host=host, port=int(port), path=path, namespace=namespace.path)
    return _Ask(pid=target.pid, address=address, question=question, purpose=purpose)


def _choose(
    target: Target, listeners: list[TcpSocket], host: Host, report: Report
) -> list[tuple[TcpSocket, tuple[tuple[str, str], ...]]]:
    """Listeners of a target that speak HTTP for certain, with what to ask of each."""
    endpoints = ENDPOINTS.get(target.product, METRICS_LISTENER)
    if target.product == "sglang" and not _publishes_load(target, host):
        endpoints = tuple(one for one in endpoints if one[1] != LOADS)
    metrics = _on(listeners, USUAL_METRICS_PORTS.get(target.product, ()))
    others = [one for one in listeners if one is not metrics]
    api = _on(others, USUAL_PORTS.get(target.product, ())) or _only(others)
    api = api or _only([one for one in others if one.send_queue >= _HTTP_BACKLOG])
    if api is None and target.product in USUAL_METRICS_PORTS and len(others) == _TWO_LISTENERS:
        metrics, api = others
    if api is None:
        if listeners:
            ports = ", ".join(str(one.local_port) for one in listeners)
            report.missed(target.pid, f"listens on ports {ports}, and which one speaks HTTP is unclear: not asked")
        return []
    chosen = [(api, endpoints)]
    if METRICS not in {purpose for _, purpose in endpoints}:
        metrics = metrics or _only([one for one in others if one is not api])
        if metrics is not None:
            chosen.append((metrics, METRICS_LISTENER))
    return chosen


def _on(listeners: Iterable[TcpSocket], ports: Sequence[int]) -> TcpSocket | None:
    return next((one for one in listeners if one.local_port in ports), None)


def _only(listeners: Sequence[TcpSocket]) -> TcpSocket | None:
    return listeners[0] if len(listeners) == 1 else None


def _publishes_load(target: Target, host: Host) -> bool:
    return bool(glob.glob(host.proc(target.pid, "root", "dev", "shm", "sglang_loads_*.shm")))


SAMPLE_METRICS = Collector(
    name="sample_metrics", tier=Tier.OUTSIDE, collect=collect, wants=lambda target: target.role in _ROLES
)
