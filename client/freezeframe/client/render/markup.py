"""Elements of a page. Text that enters one passes the guard and is escaped when the page is written: it stays text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from xml.etree import ElementTree as ET

from freezeframe.client.render.guard import clean

Element = ET.Element
Child = Element | str


def element(tag: str, attributes: Mapping[str, str | float] | None = None, *children: Child) -> Element:
    """Make an element; strings among its children are text."""
    made = Element(tag, {name: _spelled(value) for name, value in (attributes or {}).items()})
    return filled(made, children)


def filled(parent: Element, children: Iterable[Child]) -> Element:
    """Put `children` behind those that `parent` has."""
    for child in children:
        if not isinstance(child, str):
            parent.append(child)
        elif len(parent):
            parent[-1].tail = (parent[-1].tail or "") + clean(child)
        else:
            parent.text = (parent.text or "") + clean(child)
    return parent


def preformatted(lines: Iterable[str]) -> Element:
    """Make a `pre` of these lines."""
    made = Element("pre")
    made.text = "\n".join(clean(line) for line in lines)
    return made


def program(tag: str, text: str) -> Element:
    """Make a `style` or `script` of a file of this package, whose text is written as it is."""
    if "</" in text:
        raise ValueError(f"a {tag} that holds the beginning of an end tag")
    made = Element(tag)
    made.text = text
    return made


def written(root: Element) -> str:
    """Spell a whole document."""
    return "<!DOCTYPE html>\n" + ET.tostring(root, encoding="unicode", method="html") + "\n"


def _spelled(value: str | float) -> str:
    return clean(value) if isinstance(value, str) else f"{value:.6g}"
