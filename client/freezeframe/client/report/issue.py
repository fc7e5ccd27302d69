"""What an issue for a project holds, by importance: verdict, environment, then tables and stacks, folded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from freezeframe.client.render import markdown, units
from freezeframe.client.render.document import Lines, Paragraph, Section, Tone
from freezeframe.client.render.sections import SECTIONS, verdict
from freezeframe.client.render.values import enum_name
from freezeframe.v1 import snapshot_pb2

# GitHub takes 65,536 in an issue; whoever files it has a word to say too.
MOST_CHARACTERS = 60_000
_TOKENS = MOST_CHARACTERS // 3 - 200
# Sections of `show` after the verdict, the most important first.
_FOLDED = (
    "ranks", "logs", "kernel", "gpus", "locks", "requests", "python", "asyncio", "native", "outcomes", "processes",
    "metrics", "history", "host", "hops", "sockets",
)  # fmt: skip
_AFTER_THE_VERDICT = 10
_MOST_LAUNCHES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The fields that a project's bug form asks for, by its own titles."""

    bug: str
    reproduction: str
    environment: str
    # The form asks for the environment before all else.
    environment_first: bool = False
    # How the project's own check calls them.
    python: str = "Python"
    system: str = "OS"
    driver: str = "NVIDIA driver"
    gpu: str = "GPU"


FORMS = {
    "sglang": Form(
        bug="Describe the bug", reproduction="Reproduction", environment="Environment", driver="CUDA Driver Version"
    ),
    "vllm": Form(
        bug="🐛 Describe the bug",
        reproduction="How it was started",
        environment="Your current environment",
        environment_first=True,
        python="Python version",
        driver="Nvidia driver version",
    ),
    "smg": Form(bug="Bug description", reproduction="Steps to reproduce", environment="Environment"),
    "dynamo": Form(bug="Describe the Bug", reproduction="Steps to Reproduce", environment="Environment"),
}
PLAIN = Form(bug="What is stuck", reproduction="How it was started", environment="Environment")


def render(snapshots: Sequence[snapshot_pb2.Snapshot], form: Form, remark: str) -> str:
    """Lay out an issue of at most `MOST_CHARACTERS`; `remark` ends it, and says whether it was redacted."""
    # A fleet's hosts share them.
    share = _TOKENS // max(1, len(snapshots))
    pages = [markdown.render(sections(snapshot, form, remark), share) for snapshot in snapshots]
    return _bounded("\n".join(pages))


def sections(snapshot: snapshot_pb2.Snapshot, form: Form, remark: str) -> tuple[Section, ...]:
    """Build the parts of an issue in the order of `form`."""
    head, *rest = verdict.sections(snapshot)
    bug = (replace(head, title=form.bug), *rest)
    environment = Section(
        title=form.environment, blocks=(Lines(title="", lines=tuple(_environment(snapshot, form))),), priority=1
    )
    launches = _launches(snapshot)
    reproduction = Section(
        title=form.reproduction, blocks=(Lines(title="", lines=launches),) if launches else (), priority=4
    )
    by_name = {kind.name: kind for kind in SECTIONS}
    folded = (
        Section(
            title=by_name[name].title,
            blocks=by_name[name].build(snapshot),
            priority=_AFTER_THE_VERDICT + place,
            folded=True,
        )
        for place, name in enumerate(_FOLDED)
    )
    ending = Section(title="", blocks=(Paragraph(text=remark, tone=Tone.QUIET),))
    asked = (environment, *bug, reproduction) if form.environment_first else (*bug, reproduction, environment)
    return tuple(section for section in (*asked, *folded, ending) if section.blocks)


def _environment(snapshot: snapshot_pb2.Snapshot, form: Form) -> list[str]:
    """Say what the project's own check would, as far as the snapshot tells."""
    host = snapshot.host
    watched = [process for process in snapshot.processes if process.python]
    pythons = sorted({process.python for process in watched})
    products = sorted({process.product for process in snapshot.processes if process.product})
    names: dict[str, list[str]] = {}
    for gpu in snapshot.gpus:
        names.setdefault(gpu.name or "unknown", []).append(str(gpu.index))
    driver = next((host.versions[name] for name in sorted(host.versions) if "nvidia" in name.lower()), "")
    facts = [
        (form.python, ", ".join(pythons)),
        (form.system, f"{host.distribution} ({host.architecture})" if host.distribution else ""),
        ("Kernel", host.kernel),
        *((f"{form.gpu} {','.join(indices)}", name) for name, indices in names.items()),
        (form.driver, driver),
        *((name, host.versions[name]) for name in sorted(host.versions) if host.versions[name] != driver),
        ("CPUs", str(host.cpus) if host.cpus else ""),
        ("Memory", units.size(host.memory_total_bytes) if host.memory_total_bytes else ""),
        ("Serving", ", ".join(products)),
        ("freezeframe", snapshot.meta.agent_version),
    ]
    return [f"{name}: {value or 'not known'}" for name, value in facts]


def _launches(snapshot: snapshot_pb2.Snapshot) -> tuple[str, ...]:
    """Give the command line of each process of the serving path."""
    lines = [
        f"{enum_name(process, 'role').lower()} (pid {process.pid}): {' '.join(process.argv)}"
        for process in snapshot.processes
        if process.argv and enum_name(process, "role") not in ("OTHER", "UNSPECIFIED")
    ]
    more = len(lines) - _MOST_LAUNCHES
    return (*lines[:_MOST_LAUNCHES], *((f"{more} more",) if more > 0 else ()))


def _bounded(text: str) -> str:
    """Cut what no priority could; a file can come from anybody."""
    if len(text) <= MOST_CHARACTERS:
        return text
    said = "\n\nCut here: what must be said is longer than an issue may be.\n"
    return text[: MOST_CHARACTERS - len(said)] + said
