"""Text as a reader could see through it: percent signs decoded, line ends taken out; each place knows where it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_PERCENT = re.compile(r"%[0-9A-Fa-f]{2}")
# A line end, real or escaped, that may stand in the middle of a value: what follows begins no name, flag or time stamp.
_BREAK = re.compile(
    r"\\?(?:\r?\n|\\r\\n|\\[nr]|\\x0d\\x0a|\\x0[ad])[ \t]*"
    r"(?![\w.-]+[\"']?[ \t]*[:=](?!=*(?:\s|$)))(?!--[a-z]|-[A-Za-z](?:\s|$))(?!\[?\d{4}-\d)"
)
# Encoded twice, as in a URL inside of a URL.
_MOST_DECODED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """`text`, and the span of the original that is behind each of its characters; None = the same."""

    text: str
    spans: tuple[tuple[int, int], ...] | None = None
    # Line ends were taken out.
    joined: bool = False

    def original(self, begin: int, end: int) -> tuple[int, int]:
        """Give the span of the original behind characters `begin` to `end`, at least one."""
        if self.spans is None:
            return begin, end
        return self.spans[begin][0], self.spans[end - 1][1]


def views(text: str) -> tuple[View, ...]:
    """Give `text` itself and every other way to see it that differs."""
    found = [View(text=text)]
    joined = _without(found[0], _BREAK, lambda _: "")
    if joined.text != text:
        found.append(View(text=joined.text, spans=joined.spans, joined=True))
    if "%" in text:
        for view in tuple(found):
            seen = view
            for _ in range(_MOST_DECODED):
                # Latin-1 keeps one character per byte; what is looked for is ASCII.
                decoded = _without(seen, _PERCENT, lambda match: bytes.fromhex(match[0][1:]).decode("latin-1"))
                if decoded.text == seen.text:
                    break
                found.append(decoded)
                seen = decoded
                # A line end that was encoded too.
                if (whole := _without(decoded, _BREAK, lambda _: "")).text != decoded.text:
                    found.append(View(text=whole.text, spans=whole.spans, joined=True))
    return tuple(found)


def _without(view: View, pattern: re.Pattern[str], character: Callable[[re.Match[str]], str]) -> View:
    """Put one character or none in the place of each match."""
    spans = view.spans if view.spans is not None else tuple((at, at + 1) for at in range(len(view.text)))
    pieces: list[str] = []
    places: list[tuple[int, int]] = []
    at = 0
    for match in pattern.finditer(view.text):
        pieces.append(view.text[at : match.start()])
        places += spans[at : match.start()]
        if put := character(match):
            pieces.append(put)
            places.append((spans[match.start()][0], spans[match.end() - 1][1]))
        at = match.end()
    pieces.append(view.text[at:])
    places += spans[at:]
    return View(text="".join(pieces), spans=tuple(places), joined=view.joined)
