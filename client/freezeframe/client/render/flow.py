"""The flow map: hops as boxes along the path, who holds marked, what waits on each edge; strays beside the clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freezeframe.client.render import units
from freezeframe.client.render.markup import Element, element
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.values import pids
from freezeframe.v1 import socket_pb2, verdict_pb2

_HEIGHT = 78.0
# Space between boxes along the path and across it.
_AHEAD_WIDE, _AHEAD_TALL, _BESIDE = 96, 62, 12
_MARGIN = 6
_MOST_BESIDE = 8
_ACROSS_FROM = 12
# From where an arrow that goes round the path turns to its box.
_BEFORE = 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the map lies."""

    upright: bool
    # Of a box.
    width: float
    # Of a line in it, in characters.
    most_text: int
    most_strays: int


_FLAT = Shape(upright=False, width=172.0, most_text=23, most_strays=3)
# For a narrow screen.
_UPRIGHT = Shape(upright=True, width=138.0, most_text=18, most_strays=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One hop or stray client: its lines, and where it stands."""

    name: str
    lines: tuple[str, ...]
    kind: str
    # Full text for who points at it.
    title: str
    depth: int
    pids: frozenset[int] = frozenset()
    next: tuple[str, ...] = ()

    @property
    def aside(self) -> bool:
        """Whether it stands beside the path, with arrows that go round it."""
        return self.kind == "stray"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """What goes from one box to another."""

    begin: str
    end: str
    label: str
    kind: str
    # Along the side, round what is between.
    aside: bool = False


def flow_map(snapshot: Snapshot, *, upright: bool) -> Element | None:
    """Draw the map from left to right, or from top to bottom for a narrow screen; None where there are no hops."""
    shape = _UPRIGHT if upright else _FLAT
    boxes = _boxes(snapshot, shape)
    if not boxes:
        return None
    arrows = _arrows(snapshot, boxes)
    places = _places(boxes, shape)
    width = max(x for x, _ in places.values()) + shape.width + _MARGIN
    height = max(y for _, y in places.values()) + _HEIGHT + _MARGIN
    said = "; ".join(box.title for box in boxes)
    return element(
        "svg",
        {
            "class": f"flow {'tall' if upright else 'wide'}",
            "role": "img",
            "aria-label": f"Flow of requests: {said}",
            "viewBox": f"0 0 {width:.6g} {height:.6g}",
            "width": width,
            "height": height,
        },
        *(_line(arrow, places, shape) for arrow in arrows),
        *(_box(box, *places[box.name], shape) for box in boxes),
        *(_label(arrow, places, shape) for arrow in arrows if arrow.label),
    )


def _places(boxes: Sequence[Box], shape: Shape) -> dict[str, tuple[float, float]]:
    """Place each step of the path in the middle, and who goes round it at the far side."""
    rows: dict[int, list[Box]] = {}
    for box in boxes:
        rows.setdefault(-1 if box.aside else box.depth, []).append(box)
    asides = rows.pop(-1, [])
    most = max(len(row) for row in rows.values())
    ahead = (_HEIGHT + _AHEAD_TALL) if shape.upright else (shape.width + _AHEAD_WIDE)
    beside = (shape.width if shape.upright else _HEIGHT) + _BESIDE
    placed: list[tuple[str, float, float]] = [
        (box.name, _MARGIN + depth * ahead, _MARGIN + ((most - len(row)) / 2 + number) * beside)
        for depth, row in rows.items()
        for number, box in enumerate(row)
    ]
    placed += [(box.name, _MARGIN, _MARGIN + (most + number) * beside) for number, box in enumerate(asides)]
    return {name: (across, along) if shape.upright else (along, across) for name, along, across in placed}


def _boxes(snapshot: Snapshot, shape: Shape) -> list[Box]:
    hops = list(snapshot.hops)
    depths = {hop.name: 0 for hop in hops}
    # A path has no more steps than hops, whatever a file says.
    for _ in hops:
        for hop in hops:
            for name in hop.next:
                if name in depths:
                    depths[name] = min(max(depths[name], depths[hop.name] + 1), len(hops))
    used = sorted(set(depths.values()))
    boxes = []
    beside: dict[int, int] = {}
    for hop in sorted(hops, key=lambda hop: (not hop.holds, -hop.in_flight)):
        depth = used.index(depths[hop.name])
        beside[depth] = beside.get(depth, 0) + 1
        if beside[depth] <= _MOST_BESIDE:
            boxes.append(_hop(hop, depth))
    boxes.sort(key=lambda box: next(place for place, hop in enumerate(hops) if hop.name == box.name))
    for depth, number in beside.items():
        if number > _MOST_BESIDE:
            more = f"{number - _MOST_BESIDE} more"
            boxes.append(Box(name=f"\0{depth}", lines=(more, "see Hops"), kind="more", title=more, depth=depth))
    return boxes + (_strays(snapshot, shape.most_strays) if boxes else [])


def _hop(hop: socket_pb2.Hop, depth: int) -> Box:
    where = pids(hop.pids[:2]) + (" …" if len(hop.pids) > 2 else "")  # noqa: PLR2004
    oldest = f"oldest {units.age(hop.oldest_age_ms)}" if hop.HasField("oldest_age_ms") else ""
    flight = f"{units.count(hop.in_flight, 'request')}"
    lines = [flight, oldest, where]
    if hop.holds:
        lines = [f"HOLDS {flight}", oldest, where]
    holds = ", holds them" if hop.holds else ""
    return Box(
        name=hop.name,
        lines=(hop.name, *filter(None, lines)),
        kind="holds" if hop.holds else "hop",
        title=f"{hop.name}: {hop.in_flight} in flight{holds}" + (f", {oldest}" if oldest else ""),
        depth=depth,
        pids=frozenset(hop.pids),
        next=tuple(hop.next),
    )


def _strays(snapshot: Snapshot, most: int) -> list[Box]:
    """Boxes for clients whose bytes move while others wait, or that go round the router."""
    odd = [each for each in snapshot.verdict.attribution if each.stray or each.bypasses_router]
    return [_stray(each, number) for number, each in enumerate(odd[:most])]


def _stray(client: verdict_pb2.Attribution, number: int) -> Box:
    what = "stray client" if client.stray else "round the router"
    where = f"pid {client.pid}" if client.HasField("pid") else client.client
    gets = f"receives {units.rate(client.bytes_per_s)}" if client.HasField("bytes_per_s") else ""
    return Box(
        name=f"\0stray{number}",
        lines=(what, *filter(None, (gets, where))),
        kind="stray",
        title=f"{what} {client.client} ({where})" + (f", {gets}" if gets else ""),
        depth=0,
        pids=frozenset((client.pid,)) if client.HasField("pid") else frozenset(),
        next=tuple(client.talks_to),
    )


def _arrows(snapshot: Snapshot, boxes: Sequence[Box]) -> list[Arrow]:
    """One arrow from box to box where the path or a connection goes, with what is owed along it."""
    by_name = {box.name: box for box in boxes}
    arrows = []
    for box in boxes:
        for other in dict.fromkeys(box.next):
            if other not in by_name or other == box.name:
                continue
            edges = [
                edge
                for edge in snapshot.edges
                if edge.HasField("client_pid")
                and edge.client_pid in box.pids
                and edge.HasField("server_pid")
                and edge.server_pid in by_name[other].pids
            ]
            label, kind = _told(edges)
            arrows.append(Arrow(begin=box.name, end=other, label=label, kind=kind, aside=box.aside))
    return arrows


def _told(edges: Sequence[socket_pb2.Edge]) -> tuple[str, str]:
    owed = sum(edge.owed for edge in edges)
    moving = sum(edge.moving for edge in edges)
    if moving:
        return f"{moving} moving" + (f", {owed - moving} waiting" if owed > moving else ""), "moves"
    if owed:
        return f"{owed} waiting", "waits"
    connections = sum(edge.connections for edge in edges)
    return (f"{connections} idle" if connections else ""), "rests"


def _box(box: Box, x: float, y: float, shape: Shape) -> Element:
    name, *lines = box.lines
    texts = [element("text", {"class": "name", "x": x + _ACROSS_FROM, "y": y + 21}, _short(name, shape.most_text))]
    texts += [
        element(
            "text",
            {"class": "first" if not number else "", "x": x + _ACROSS_FROM, "y": y + 38 + 14.5 * number},
            _short(line, shape.most_text),
        )
        for number, line in enumerate(lines)
    ]
    frame = element("rect", {"x": x, "y": y, "width": shape.width, "height": _HEIGHT, "rx": 6})
    bar = (element("rect", {"class": "bar", "x": x, "y": y, "width": 5, "height": _HEIGHT, "rx": 2}),)
    marked = bar if box.kind in {"holds", "stray"} else ()
    return element("g", {"class": f"box {box.kind}"}, element("title", None, box.title), frame, *marked, *texts)


def _ends(arrow: Arrow, places: dict[str, tuple[float, float]], shape: Shape) -> tuple[float, float, float, float]:
    (x, y), (to_x, to_y) = places[arrow.begin], places[arrow.end]
    if shape.upright:
        return x + shape.width / 2, y + _HEIGHT, to_x + shape.width / 2, to_y
    return x + shape.width, y + _HEIGHT / 2, to_x, to_y + _HEIGHT / 2


def _line(arrow: Arrow, places: dict[str, tuple[float, float]], shape: Shape) -> Element:
    x, y, to_x, to_y = _ends(arrow, places, shape)
    begin, end = (y, to_y) if shape.upright else (x, to_x)
    # It turns half way, or in the space before the box.
    turn = end - _BEFORE if arrow.aside else (begin + end) / 2
    if shape.upright:
        tip = f"M{to_x:.6g} {to_y:.6g}l-5 -8h10z"
        begins = f"M{x:.6g} {y:.6g}" + (f"V{turn - _BEFORE:.6g}" if arrow.aside else "")
        line = f"{begins}C{x:.6g} {turn:.6g} {to_x:.6g} {turn:.6g} {to_x:.6g} {to_y - 8:.6g}"
    else:
        tip = f"M{to_x:.6g} {to_y:.6g}l-8 -5v10z"
        begins = f"M{x:.6g} {y:.6g}" + (f"H{turn - _BEFORE:.6g}" if arrow.aside else "")
        line = f"{begins}C{turn:.6g} {y:.6g} {turn:.6g} {to_y:.6g} {to_x - 8:.6g} {to_y:.6g}"
    paths = (element("path", {"class": "line", "d": line}), element("path", {"class": "tip", "d": tip}))
    return element("g", {"class": f"arrow {arrow.kind}"}, *paths)


def _label(arrow: Arrow, places: dict[str, tuple[float, float]], shape: Shape) -> Element:
    x, y, to_x, to_y = _ends(arrow, places, shape)
    if arrow.aside:
        # Where it still goes straight.
        place = {"x": x, "y": y + 28.0} if shape.upright else {"x": x + 40.0, "y": y - 6}
    else:
        place = {"x": (x + to_x) / 2, "y": (y + to_y) / 2 + (4 if shape.upright else -6)}
    return element("text", {"class": f"label {arrow.kind}", "text-anchor": "middle", **place}, arrow.label)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
