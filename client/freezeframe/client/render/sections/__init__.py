"""What `show` can show: one entry per section, written out."""

from __future__ import annotations

from freezeframe.client.render.document import Section
from freezeframe.client.render.sections import (
    history,
    hops,
    host,
    logs,
    metrics,
    outcomes,
    processes,
    profile,
    ranks,
    records,
    requests,
    sockets,
    stacks,
    verdict,
)
from freezeframe.client.render.sections import why as why_sections
from freezeframe.client.render.sections.contract import SectionKind, Snapshot, empty
from freezeframe.judge.explain import Explanation

_SOCKETS = "snapshot_sockets"

# All but the verdict, which is a page of its own.
SECTIONS: tuple[SectionKind, ...] = (
    SectionKind(
        name="findings",
        title="Findings",
        fields=("findings",),
        build=outcomes.findings,
        otherwise="The agent judges what its collectors bring: see the outcomes.",
    ),
    SectionKind(
        name="hops",
        title="Hops",
        fields=("hops", "edges", "connection_events"),
        build=hops.hops,
        collectors=(_SOCKETS,),
    ),
    SectionKind(
        name="processes",
        title="Processes",
        fields=("processes",),
        build=processes.processes,
        collectors=("snapshot_processes",),
    ),
    SectionKind(
        name="requests",
        title="Requests",
        fields=("requests", "log_requests", "recorder"),
        build=requests.requests,
        collectors=("trace_requests", "read_logs", _SOCKETS),
    ),
    SectionKind(name="sockets", title="Sockets", fields=("sockets",), build=sockets.sockets, collectors=(_SOCKETS,)),
    SectionKind(
        name="python",
        title="Python stacks",
        fields=("python_threads",),
        beside=("ranks",),
        build=stacks.python,
        collectors=("snapshot_python_stacks",),
    ),
    SectionKind(
        name="asyncio",
        title="Asyncio tasks",
        fields=("asyncio_tasks",),
        build=stacks.asyncio,
        collectors=("snapshot_asyncio_tasks",),
    ),
    SectionKind(
        name="native",
        title="Native stacks",
        fields=("native_threads",),
        beside=("ranks",),
        build=stacks.native,
        collectors=("snapshot_native_stacks",),
    ),
    SectionKind(
        name="locks",
        title="Locks",
        fields=("locks", "futex_waits", "futex_addresses"),
        build=stacks.locks,
        collectors=("snapshot_locks", "trace_futex"),
    ),
    SectionKind(
        name="ranks",
        title="Ranks",
        fields=("ranks", "debug_traces"),
        build=ranks.ranks,
        collectors=("snapshot_python_stacks", "read_debug_traces"),
    ),
    SectionKind(
        name="profile",
        title="Profile",
        fields=("profile",),
        beside=("ranks",),
        build=profile.profile,
        otherwise="A profile is taken on request only: freezeframe snap --profile 5.",
    ),
    SectionKind(
        name="gpus",
        title="GPUs",
        fields=("gpus",),
        beside=("processes",),
        build=host.gpus,
        collectors=("snapshot_gpus",),
    ),
    SectionKind(
        name="metrics",
        title="Metrics",
        fields=("metrics", "endpoints"),
        build=metrics.metrics,
        collectors=("sample_metrics", "read_gauges"),
    ),
    SectionKind(
        name="logs",
        title="Logs",
        fields=("log_findings", "log_sources", "log_requests"),
        build=logs.logs,
        collectors=("read_logs",),
    ),
    SectionKind(
        name="kernel",
        title="Kernel log",
        fields=("kernel_events",),
        build=host.kernel,
        collectors=("read_kernel_log",),
    ),
    SectionKind(name="host", title="Host", fields=("host",), build=host.host, collectors=("snapshot_host",)),
    SectionKind(
        name="outcomes",
        title="Outcomes",
        fields=("outcomes",),
        build=outcomes.outcomes,
        otherwise="The agent says nothing of its collectors.",
    ),
    SectionKind(
        name="history",
        title="History",
        fields=("history",),
        beside=("processes",),
        build=history.history,
        collectors=("read_history",),
        otherwise="The recorder brings it: a daemon that runs as root before the trouble starts.",
    ),
)

# Under a budget the verdict's page, and the chain behind it, come first.
_AFTER_THE_VERDICT = 10

# What its page is made of.
_OF_THE_VERDICT = ("verdict", "findings", "hops")

_BY_NAME = {kind.name: kind for kind in SECTIONS}


def build(
    snapshot: Snapshot,
    names: tuple[str, ...],
    file: str | None,
    *,
    why: bool,
    explanation: Explanation | None = None,
    hosts: records.Hosts = records.no_hosts,
) -> tuple[Section, ...]:
    """Build the sections called `names` ("verdict" among them), in that order; `explanation` follows the verdict.

    `hosts` has the snapshots that references lead to, where there are several.
    """
    pages: list[Section] = []
    for name in names:
        if name == "verdict":
            pages += verdict.sections(snapshot, file, why=why, hosts=hosts)
            pages += why_sections.sections(explanation, snapshot) if explanation is not None else ()
        else:
            kind = _BY_NAME[name]
            pages.append(
                Section(
                    title=kind.title, blocks=kind.build(snapshot) or empty(kind, snapshot), priority=_AFTER_THE_VERDICT
                )
            )
    return tuple(pages)


def read_by(names: tuple[str, ...]) -> frozenset[str]:
    """Name the fields of Snapshot, beside meta and outcomes, that `build` reads for these sections, without `why`."""
    read: list[str] = []
    for name in names:
        read += _OF_THE_VERDICT if name == "verdict" else (*_BY_NAME[name].fields, *_BY_NAME[name].beside)
    return frozenset(read)


def fields(names: tuple[str, ...]) -> tuple[str, ...]:
    """Name the fields of Snapshot that the sections called `names` show; `meta` is always among them."""
    shown = ["meta"]
    for name in names:
        shown += ("verdict",) if name == "verdict" else _BY_NAME[name].fields
    return tuple(dict.fromkeys(shown))
