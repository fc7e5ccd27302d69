"""The history as a page: an area per series, its time from left to right."""

from __future__ import annotations

import math
from collections.abc import Sequence

from freezeframe.client.render import units
from freezeframe.client.render.html import MOST_ROWS
from freezeframe.client.render.markup import Element, element
from freezeframe.client.render.sections import history
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.values import optional
from freezeframe.v1 import host_pb2

_WIDTH = 240
_HEIGHT = 28
_SIZES = {"answer bytes", "request bytes"}


def charts(snapshot: Snapshot) -> list[Element]:
    """Draw a row per series: what, of whom, its peak, when it last was not 0, and the area."""
    series = history.moved(snapshot)[:MOST_ROWS]
    if not series:
        return []
    processes = {each.pid: each for each in snapshot.processes}
    longest = max(len(each.values) for each in series)
    past = units.age(longest * snapshot.history.interval_ms)
    rows = [
        element(
            "tr",
            None,
            element("th", {"scope": "row"}, each.kind),
            element("td", {"class": "long"}, history.of(each, processes)),
            element("td", {"class": "right"}, peak(each)),
            element(
                "td", {"class": "right"}, optional(each, "last_nonzero_age_ms", lambda age: f"{units.age(age)} ago")
            ),
            element("td", None, area(each.values, longest, f"{each.kind}, the last {past}, at most {peak(each)}")),
        )
        for each in series
    ]
    titles = [element("th", {"scope": "col"}, title) for title in ("what", "of", "peak", "last not 0")]
    axis = element("div", {"class": "axis"}, element("span", None, f"{past} ago"), element("span", None, "capture"))
    head = element("tr", None, *titles, element("th", {"scope": "col"}, axis))
    table = element("table", {"class": "charts"}, element("thead", None, head), element("tbody", None, *rows))
    around = {"class": "scrolls", "tabindex": "0", "role": "region", "aria-label": "charts of the history"}
    return [element("div", around, table)]


def peak(series: host_pb2.Series) -> str:
    """Say the largest value with its unit."""
    largest = max(filter(math.isfinite, series.values), default=0.0)
    return units.rate(largest) if series.kind in _SIZES else units.number(largest)


def area(values: Sequence[float], longest: int, title: str) -> Element:
    """Draw `values`, the newest at the right edge of `longest`; where nothing is known there is a gap."""
    step = max(1, math.ceil(longest / _WIDTH))
    padded = [math.nan] * (-longest % step + longest - len(values)) + list(values)
    # What is too narrow to be seen shows by its peak.
    tops = [max(filter(math.isfinite, padded[at : at + step]), default=math.nan) for at in range(0, len(padded), step)]
    largest = max(filter(math.isfinite, tops), default=0.0)
    scale = (_HEIGHT - 2) / largest if largest > 0 else 0.0
    shapes = [
        element("path", {"d": f"M{begin} {_HEIGHT}{_along(run, begin, scale)}L{begin + len(run)} {_HEIGHT}Z"})
        for begin, run in _runs(tops)
    ]
    size = {"viewBox": f"0 0 {len(tops)} {_HEIGHT}", "preserveAspectRatio": "none"}
    return element("svg", {"class": "area", "role": "img", "aria-label": title, **size}, *shapes)


def _runs(values: Sequence[float]) -> list[tuple[int, list[float]]]:
    """Split into runs of known values, each with its place."""
    runs: list[tuple[int, list[float]]] = []
    before = math.nan
    for place, value in enumerate(values):
        if not math.isnan(value):
            if math.isnan(before):
                runs.append((place, []))
            runs[-1][1].append(value)
        before = value
    return runs


def _along(run: Sequence[float], begin: int, scale: float) -> str:
    """Step along the tops, each as wide as its time."""
    tops = (f"{_HEIGHT - max(0.0, value) * scale:.5g}" for value in run)
    return "".join(f"L{begin + place} {top}H{begin + place + 1}" for place, top in enumerate(tops))
