"""Bug forms of projects: the fields that each asks for, by its own titles and in its order, and what fills them. Pure.

What only a person can say (that one searched, that the newest version does it too) is left to them.

Sources, in each repository's .github/ISSUE_TEMPLATE: sgl-project/sglang 1-bug-report.yml, vllm-project/vllm
400-bug-report.yml, lightseekorg/smg 1-bug-report.yml, ai-dynamo/dynamo bug_report.yml.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Lines, Paragraph, Tone
from freezeframe.client.render.sections import logs, verdict
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.values import enum_name
from freezeframe.v1 import process_pb2

_MOST_LAUNCHES = 40
# How far vLLM's collect_env indents its values.
_COLUMN = 29
_SCHEME = re.compile(r"(https?|grpcs?)://")
_UNKNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a form."""

    title: str
    # No block where the snapshot does not tell.
    fill: Callable[[Snapshot], tuple[Block, ...]]
    # As in `document.Section`.
    priority: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The fields of one project's form."""

    fields: tuple[Field, ...]
    # Titles of the fields that take the verdict's page, and tables and stacks.
    bug: str
    records: str
    # What logs say has a field of its own.
    logs_apart: bool = False


def launches(snapshot: Snapshot) -> tuple[Block, ...]:
    """Give the command line of each process of the serving path."""
    lines = [
        f"{enum_name(process, 'role').lower()} (pid {process.pid}): {' '.join(process.argv)}"
        for process in snapshot.processes
        if process.argv and enum_name(process, "role") not in ("OTHER", "UNSPECIFIED")
    ]
    more = len(lines) - _MOST_LAUNCHES
    return _lines(*lines[:_MOST_LAUNCHES], *((f"{more} more",) if more > 0 else ()))


def _lines(*lines: str) -> tuple[Block, ...]:
    return (Lines(title="", lines=lines),) if lines else ()


def _said(text: str) -> tuple[Block, ...]:
    return (Paragraph(text=text or _UNKNOWN, tone=Tone.PLAIN),)


def _environment(
    snapshot: Snapshot, *, system: str = "OS", python: str = "Python", driver: str = "NVIDIA driver"
) -> list[tuple[str, str]]:
    """Say what the project's own check would, as far as the snapshot tells, in its words."""
    host = snapshot.host
    names: dict[str, list[str]] = {}
    for each in snapshot.gpus:
        names.setdefault(each.name or "unknown", []).append(str(each.index))
    version = _driver(snapshot)
    return [
        (python, _pythons(snapshot)),
        (system, _system(snapshot)),
        ("Kernel", host.kernel),
        *((f"GPU {','.join(indices)}", name) for name, indices in names.items()),
        (driver, version),
        *((name, host.versions[name]) for name in sorted(host.versions) if host.versions[name] != version),
        ("CPUs", str(host.cpus) if host.cpus else ""),
        ("Memory", units.size(host.memory_total_bytes) if host.memory_total_bytes else ""),
        ("Serving", ", ".join(sorted({process.product for process in snapshot.processes if process.product}))),
        ("freezeframe", snapshot.meta.agent_version),
    ]


def _system(snapshot: Snapshot) -> str:
    host = snapshot.host
    return f"{host.distribution} ({host.architecture})" if host.distribution else ""


def _pythons(snapshot: Snapshot) -> str:
    return ", ".join(sorted({process.python for process in snapshot.processes if process.python}))


def _driver(snapshot: Snapshot) -> str:
    versions = snapshot.host.versions
    return next((versions[name] for name in sorted(versions) if "nvidia" in name.lower()), "")


def _check_env(snapshot: Snapshot) -> tuple[Block, ...]:
    facts = _environment(snapshot, driver="CUDA Driver Version")
    return _lines(*(f"{name}: {value or _UNKNOWN}" for name, value in facts))


def _collect_env(snapshot: Snapshot) -> tuple[Block, ...]:
    facts = _environment(snapshot, python="Python version", driver="Nvidia driver version")
    return _lines(*(f"{name:<{_COLUMN}}: {value or _UNKNOWN}" for name, value in facts))


def _plain_environment(snapshot: Snapshot) -> tuple[Block, ...]:
    facts = _environment(snapshot)
    return _lines(*(f"{name}: {value or _UNKNOWN}" for name, value in facts))


def _reproduction(snapshot: Snapshot) -> tuple[Block, ...]:
    return launches(snapshot) or _said("")


def _expected(snapshot: Snapshot) -> tuple[Block, ...]:
    return _said("Each request is answered or refused; none waits for ever." if verdict.is_stuck(snapshot) else "")


def _actual(snapshot: Snapshot) -> tuple[Block, ...]:
    return (*_said(snapshot.verdict.summary), *verdict.oldest(snapshot))


def _routers(snapshot: Snapshot) -> Iterator[process_pb2.Process]:
    return (each for each in snapshot.processes if enum_name(each, "role") == "ROUTER")


def _component(snapshot: Snapshot) -> tuple[Block, ...]:
    return _said("model-gateway (core routing)" if snapshot.verdict.hop == "router" else "Other / Not sure")


def _policy(snapshot: Snapshot) -> tuple[Block, ...]:
    found = []
    for router in _routers(snapshot):
        words = [part for word in router.argv for part in word.split("=", 1)]
        found += [value for flag, value in itertools.pairwise(words) if flag == "--policy"]
    return _said(", ".join(sorted(set(found))))


def _connection_mode(snapshot: Snapshot) -> tuple[Block, ...]:
    """Tell from the addresses of workers in the router's arguments."""
    schemes = {scheme for router in _routers(snapshot) for scheme in _SCHEME.findall(" ".join(router.argv))}
    modes = {{"http": "HTTP", "https": "HTTPS"}.get(scheme, "gRPC") for scheme in schemes}
    return _said("Mixed" if len(modes) > 1 else "".join(modes))


def _configuration(snapshot: Snapshot) -> tuple[Block, ...]:
    return _lines(*(" ".join(router.argv) for router in _routers(snapshot) if router.argv)) or _said("")


def _uname(snapshot: Snapshot) -> tuple[Block, ...]:
    facts = _environment(snapshot, system="Distribution")
    kernel = f"OS: Linux {snapshot.host.kernel or _UNKNOWN}"
    rest = (f"{name}: {value or _UNKNOWN}" for name, value in facts if name != "Kernel")
    return _lines(kernel, f"cargo: {_UNKNOWN}", f"rustc: {_UNKNOWN}", *rest)


def _deployment(snapshot: Snapshot) -> tuple[Block, ...]:
    routers = list(_routers(snapshot))
    if not routers:
        return _said("")
    if any(router.pod for router in routers):
        return _said("Kubernetes")
    return _said("Docker" if any(router.container for router in routers) else "Bare metal / VM")


def _streaming(snapshot: Snapshot) -> tuple[Block, ...]:
    seen = any(request.streaming for request in snapshot.requests)
    return _said("Issue occurs with streaming (SSE) responses" if seen else "")


def _gpus(snapshot: Snapshot) -> tuple[Block, ...]:
    return _said(", ".join(sorted({gpu.name for gpu in snapshot.gpus if gpu.name})))


def _nothing(_: Snapshot) -> tuple[Block, ...]:
    return ()


def _below(_: Snapshot) -> tuple[Block, ...]:
    return _said("What a snapshot of freezeframe holds of it:")


def _asked(title: str, say: Callable[[Snapshot], str]) -> Field:
    return Field(title=title, fill=lambda snapshot: _said(say(snapshot)))


def _version(title: str, name: str) -> Field:
    return _asked(title, lambda snapshot: snapshot.host.versions.get(name, ""))


FORMS = {
    "sglang": Form(
        bug="Describe the bug",
        records="Describe the bug",
        fields=(
            Field(title="Describe the bug", fill=_nothing),
            Field(title="Reproduction", fill=_reproduction, priority=4),
            Field(title="Environment", fill=_check_env),
        ),
    ),
    "vllm": Form(
        bug="🐛 Describe the bug",
        records="🐛 Describe the bug",
        fields=(
            Field(title="Your current environment", fill=_collect_env),
            Field(title="🐛 Describe the bug", fill=launches),
        ),
    ),
    "smg": Form(
        bug="Bug Description",
        records="Additional Context",
        logs_apart=True,
        fields=(
            Field(title="Bug Description", fill=_nothing),
            Field(title="Steps to Reproduce", fill=_reproduction, priority=4),
            Field(title="Expected Behavior", fill=_expected),
            Field(title="Actual Behavior", fill=_actual),
            Field(title="Component", fill=_component),
            Field(title="Routing Policy (if applicable)", fill=_policy),
            Field(title="Connection Mode", fill=_connection_mode),
            Field(title="Configuration", fill=_configuration, priority=3),
            Field(title="Logs / Error Output", fill=lambda snapshot: logs.logs(snapshot) or _said(""), priority=5),
            Field(title="Environment", fill=_uname),
            Field(title="Deployment Environment", fill=_deployment),
            Field(title="Streaming Context", fill=_streaming),
            Field(title="Additional Context", fill=_below),
        ),
    ),
    "dynamo": Form(
        bug="Describe the Bug",
        records="Additional Context",
        fields=(
            Field(title="Describe the Bug", fill=_nothing),
            Field(title="Steps to Reproduce", fill=_reproduction, priority=4),
            Field(title="Expected Behavior", fill=_expected),
            Field(title="Actual Behavior", fill=_actual),
            _asked("Operating System", _system),
            _version("ai-dynamo Version", "ai-dynamo"),
            _version("ai-dynamo-runtime Version", "ai-dynamo-runtime"),
            _version("ai-dynamo-vllm Version", "ai-dynamo-vllm"),
            _version("nixl Version", "nixl"),
            _asked("Python Version", _pythons),
            _version("CUDA Version", "cuda"),
            Field(title="GPU Architecture", fill=_gpus),
            Field(title="Additional Context", fill=_plain_environment),
        ),
    ),
}
PLAIN = Form(
    bug="What is stuck",
    records="Environment",
    fields=(
        Field(title="What is stuck", fill=_nothing),
        Field(title="How it was started", fill=launches, priority=4),
        Field(title="Environment", fill=_plain_environment),
    ),
)
