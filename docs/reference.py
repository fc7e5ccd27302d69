"""Writes the documentation as MkDocs reads it: the pages, and the reference from the code. reference.py DIRECTORY."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import click

from freezeframe.agentd import config
from freezeframe.agentd.collectors import COLLECTORS
from freezeframe.agentd.daemon import command as agent
from freezeframe.client.cli import cli
from freezeframe.judge.verdicts import OTHERWISE, RULES

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs/pages"
PROTO = ROOT / "proto/freezeframe/v1"
CHART = ROOT / "packaging/kubernetes/freezeframe"
# A comment of the configuration stands above its field.
_FIELD = re.compile(r"^    (\w+): ")
# What a page takes beside its two menus.
_COLUMNS = 80


def main(directory: Path) -> None:
    """Write everything below `directory`, which is emptied."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(PAGES, directory)
    (directory / "reference").mkdir()
    pages = (
        ("commands", commands),
        ("agent", settings),
        ("collectors", collectors),
        ("verdicts", verdicts),
        ("wire", wire),
        ("chart", chart),
    )
    for name, lines in pages:
        (directory / f"reference/{name}.md").write_text("\n".join(lines()) + "\n", encoding="utf-8")


def commands() -> Iterator[str]:
    """Give the help of every command."""
    yield "# Commands\n"
    for name, each in (("freezeframe", cli), ("freezeframe-agentd", agent)):
        yield from _help(name, each, None)


def _help(name: str, each: click.Command, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(each, info_name=name, parent=parent, terminal_width=_COLUMNS, max_content_width=_COLUMNS)
    yield f"## {context.command_path}\n"
    yield f"```{{.text .columns}}\n{each.get_help(context)}\n```\n"
    if isinstance(each, click.Group):
        for child in each.list_commands(context):
            yield from _help(child, each.commands[child], context)


def settings() -> Iterator[str]:
    """Give each key of the agent's configuration with its default and what its comment says."""
    yield "# The agent's configuration\n"
    yield f"`{config.DEFAULT_PATH}`, TOML. `freezeframe-agentd --check-config` prints what is in force.\n"
    yield from _table(config.Config, "", "At the top")


def _table(kind: type, name: str, heading: str) -> Iterator[str]:
    yield f"## {heading}\n"
    yield f"{inspect.getdoc(kind)}\n"
    yield "| key | default | what it is |"
    yield "|---|---|---|"
    comments = _comments(kind)
    types = get_type_hints(kind)
    tables = []
    for field in dataclasses.fields(kind):
        path = f"{name}.{field.name}".lstrip(".")
        # Of a list of tables each is one of its kind.
        kinds = [each for each in get_args(types[field.name]) if dataclasses.is_dataclass(each)]
        if dataclasses.is_dataclass(field.default):
            tables.append((type(field.default), path, f"[{path}]"))
        elif kinds:
            tables.append((kinds[0], path, f"[[{path}]]"))
        else:
            default = "" if field.default is dataclasses.MISSING else f"`{config._toml(field.default)}`"
            yield f"| `{field.name}` | {default} | {comments[field.name]} |"
    yield ""
    for table in tables:
        yield from _table(*table)


def _comments(kind: type) -> dict[str, str]:
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        if line.startswith("    # "):
            above.append(line.strip("# "))
            continue
        if match := _FIELD.match(line):
            found[match[1]] = " ".join(above).replace("|", "\\|")
        above = []
    return found


def collectors() -> Iterator[str]:
    """Give what each collector reads, needs, costs and cannot see."""
    yield "# Collectors\n"
    for collector in COLLECTORS:
        text = inspect.getdoc(inspect.getmodule(collector.collect)) or ""
        yield f"## {collector.name}\n"
        yield from _prose(text.removeprefix(f"{collector.name}: "))


def verdicts() -> Iterator[str]:
    """Give the proof of each verdict."""
    yield "# Verdicts\n"
    yield "The principal one is decided by cause, in this order, then by how much it explains. The last stand alone.\n"
    for rule in (rule for rules in (*RULES, OTHERWISE) for rule in rules):
        text = inspect.getdoc(inspect.getmodule(rule)) or ""
        title, _, proof = text.partition(":")
        yield f"## {title}\n"
        yield from _prose(proof.strip())


def _prose(text: str) -> Iterator[str]:
    """Give a docstring as Markdown: its paragraphs, lists and code in backticks are that, all else is text."""
    listed = False
    for line in (text[:1].upper() + text[1:]).splitlines():
        # An item, or one that goes on.
        if line and line.startswith(("- ", "  ")) != listed:
            listed = not listed
            yield ""
        parts = line.split("`")
        parts[::2] = [re.sub(r"[\\*_\[\]{}]", r"\\\g<0>", part).replace("<", "&lt;") for part in parts[::2]]
        yield "`".join(parts)
    yield ""


def wire() -> Iterator[str]:
    """Give the contract of the wire and of files."""
    yield "# Wire and files\n"
    yield "JSON is the protobuf JSON mapping of these messages, with the names of fields as they are here.\n"
    for path in sorted(PROTO.glob("*.proto")):
        yield f"## {path.name}\n"
        yield f"```protobuf\n{path.read_text(encoding='utf-8').strip()}\n```\n"


def chart() -> Iterator[str]:
    """Give the values of the Helm chart."""
    yield "# Values of the Helm chart\n"
    yield f"```yaml\n{(CHART / 'values.yaml').read_text(encoding='utf-8').strip()}\n```\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
