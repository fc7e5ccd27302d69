"""Labels with numbers at their ends, told as ranges: "TP0-3, TP5". Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"(.*?)(\d{1,18})$")


def folded(labels: Iterable[str], *, most: int = 8) -> str:
    """Name the labels, ranges first, `most` of them at most."""
    ranges: dict[str, list[int]] = {}
    others: list[str] = []
    for label in dict.fromkeys(labels):
        found = _NUMBER.match(label)
        if found is None:
            others.append(label)
        else:
            ranges.setdefault(found[1], []).append(int(found[2]))
    said = [f"{head}{span}" for head, numbers in ranges.items() for span in _spans(sorted(numbers))]
    said = [*said, *others]
    return ", ".join(said[:most]) + (f" and {len(said) - most} more" if len(said) > most else "")


def _spans(numbers: Sequence[int]) -> list[str]:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in spans]
