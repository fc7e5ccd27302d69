"""One HTML page that opens offline: verdict and flow map first, then what they lean on. Pure but for its own files."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from freezeframe.client.render import charts, flow, html
from freezeframe.client.render.document import Section
from freezeframe.client.render.markup import Element, element, filled, program, written
from freezeframe.client.render.sections import SECTIONS, verdict
from freezeframe.client.render.sections.contract import SectionKind, Snapshot, empty
from freezeframe.client.render.values import enum_name

_STACKS = ("python", "asyncio", "native")
# In the order of the page; the first are open.
_ORDER = (
    "history", "requests", "hops", *_STACKS, "locks", "ranks", "profile", "gpus", "metrics", "logs", "kernel",
    "processes", "sockets", "host", "findings", "outcomes",
)  # fmt: skip
_OPEN = frozenset({"history", "requests", *_STACKS, "outcomes"})
# A long list beside the verdict stands in a column of its own.
_MAIN = ("Evidence", "Ruled out")


def render(snapshots: Sequence[Snapshot], remark: str) -> str:
    """Lay out the page of one host or several; `remark` ends it, and says whether it was redacted."""
    style, script = (_asset(name) for name in ("page.css", "page.js"))
    alone = len(snapshots) == 1
    # Names of hosts can be equal, and anything.
    prefixes = [""] if alone else [f"host-{number}-" for number in range(1, len(snapshots) + 1)]
    hosts = [_host(snapshot, prefix) for snapshot, prefix in zip(snapshots, prefixes, strict=True)]
    title = "; ".join(_title(snapshot) for snapshot in snapshots[:3])
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": _policy(style, script)}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("meta", {"name": "referrer", "content": "no-referrer"}),
        element("title", None, f"{title} · freezeframe"),
        program("style", style),
    )
    body = element(
        "body",
        None,
        element("a", {"class": "skip", "href": "#verdict"}, "Skip to the verdict"),
        element("main", {"id": "verdict"}, *hosts),
        element("footer", None, element("p", None, remark)),
        program("script", script),
    )
    return written(element("html", {"lang": "en"}, head, body))


def _asset(name: str) -> str:
    return resources.files("freezeframe.client.render").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing is loaded, and nothing runs but what this package wrote."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    allowed = "; ".join(
        f"{kind} 'sha256-{each}'" for kind, each in zip(("style-src", "script-src"), hashes, strict=True)
    )
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _title(snapshot: Snapshot) -> str:
    code = enum_name(snapshot.verdict, "code") if snapshot.HasField("verdict") else "no verdict"
    return f"{code} on {snapshot.meta.host or 'unnamed host'}"


def _host(snapshot: Snapshot, prefix: str) -> Element:
    kinds = {kind.name: kind for kind in SECTIONS}
    built = {name: kinds[name].build(snapshot) for name in _ORDER}
    laid: list[Element] = []
    links: list[Element] = []
    stacks = element("div", {"class": "searchable"})
    for name in _ORDER:
        if name == _STACKS[0]:
            laid.append(stacks)
        if not built[name]:
            continue
        part = _part(snapshot, Section(title=kinds[name].title, blocks=built[name]), name, prefix)
        (stacks if name in _STACKS else laid).append(part)
        links.append(_link(prefix + name, kinds[name].title, html.count(built[name])))
    if nothing := [kinds[name] for name in _ORDER if not built[name]]:
        laid.append(_nothing(snapshot, nothing, prefix))
        links.append(_link(f"{prefix}nothing", "Nothing under", str(len(nothing))))
    contents = element("nav", {"aria-label": "Sections", "class": "contents"}, element("ul", None, *links))
    return element(
        "article",
        None,
        _top(snapshot),
        element(
            "div", {"class": "page"}, contents, element("div", {"class": "parts"}, _reasons(snapshot, prefix), *laid)
        ),
    )


def _link(target: str, title: str, count: str) -> Element:
    return element("li", None, element("a", {"href": f"#{target}"}, title, element("span", {"class": "count"}, count)))


def _top(snapshot: Snapshot) -> Element:
    """Verdict, sentence, who holds since when, and the map."""
    about = element("p", {"class": "about"}, element("strong", None, "freezeframe"), f" {verdict.about(snapshot)}")
    top = element("header", {"class": f"top {verdict.tone(snapshot.verdict).value}"}, about)
    if snapshot.HasField("verdict"):
        code = element("span", {"class": "code"}, enum_name(snapshot.verdict, "code"))
        sure = f"{enum_name(snapshot.verdict, 'confidence').lower()} confidence"
        held = verdict.holder(snapshot.verdict)
        facts = [sure, *((f"held by {held}",) if held else ()), *(each.text for each in verdict.oldest(snapshot))]
        filled(
            top,
            (
                element("h1", None, code, " ", element("span", {"class": "facts"}, " · ".join(facts))),
                element("p", {"class": "summary"}, snapshot.verdict.summary or "The agent gave no sentence."),
            ),
        )
    else:
        top.append(element("h1", None, "This snapshot carries no verdict."))
    maps = [each for upright in (False, True) if (each := flow.flow_map(snapshot, upright=upright)) is not None]
    if maps:
        around = {"class": "scrolls", "tabindex": "0", "role": "region", "aria-label": "flow map"}
        top.append(element("figure", None, element("div", around, *maps)))
    return top


def _reasons(snapshot: Snapshot, prefix: str) -> Element:
    """Evidence with its records, what is ruled out, who sent what, what was not seen, and how to go on."""
    told = {section.title: section for section in verdict.sections(snapshot)}
    with_records = {section.title: section for section in verdict.sections(snapshot, why=True)}
    shown = [with_records[title] if title == _MAIN[0] else section for title, section in told.items() if title]
    columns = (
        [section for section in shown if section.title in _MAIN],
        [section for section in shown if section.title not in _MAIN],
    )
    return element(
        "div",
        {"class": "reasons"},
        *(element("div", None, *(_reason(section, prefix) for section in column)) for column in columns if column),
    )


def _reason(section: Section, prefix: str) -> Element:
    name = section.title.lower()
    title = element("h2", None, section.title)
    return element("section", {"class": "reason"}, title, *html.blocks(section.blocks, name, prefix))


def _part(snapshot: Snapshot, shown: Section, name: str, prefix: str) -> Element:
    part = html.section(shown, name, prefix, open_=name in _OPEN)
    if name == "history":
        # In the place of the bars that text has.
        part[0][1][:] = charts.charts(snapshot)
    return part


def _nothing(snapshot: Snapshot, kinds: Sequence[SectionKind], prefix: str) -> Element:
    """Say why these sections are empty, and keep their names for those who are led to them."""
    items = [
        element(
            "li",
            {"id": prefix + kind.name},
            *(element("span", None, f"{block.text} ") for block in empty(kind, snapshot)),
        )
        for kind in kinds
    ]
    title = element("h2", None, "Nothing under ", ", ".join(kind.title for kind in kinds))
    folding = element(
        "details", None, element("summary", None, title), element("div", {"class": "body"}, element("ul", None, *items))
    )
    return element("section", {"id": f"{prefix}nothing", "class": "part empty"}, folding)
