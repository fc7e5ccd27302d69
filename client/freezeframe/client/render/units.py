"""Numbers for people: ages, sizes, rates. A unit stands beside every number that has one."""

from __future__ import annotations

import math
import re

_SECOND = 1000.0
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_STEP = 1000.0
_UNITS = ("B", "kB", "MB", "GB", "TB")
_MAGNITUDES = {
    **dict.fromkeys(("", "%", "ms"), 1.0),
    "s": _SECOND,
    "min": _MINUTE,
    "h": _HOUR,
    "d": _DAY,
    **{unit: _STEP**power for power, unit in enumerate(_UNITS)},
}
_NUMBER = r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]\d+)?"
_AMOUNT = re.compile(rf"({_NUMBER}) ?({'|'.join(filter(None, _MAGNITUDES))}|)(?:/s)?(?: |$)")


def age(milliseconds: float) -> str:
    """Say an age in one form: "612 ms", "9.8 s", "264.6 s", "3 h 12 min", "2 d 4 h"."""
    if milliseconds < _SECOND:
        return f"{milliseconds:.0f} ms" if milliseconds < _SECOND - 0.5 else "1.0 s"
    if milliseconds < 10 * _MINUTE:
        return f"{milliseconds / _SECOND:.1f} s"
    return _clock(milliseconds)


def long_age(milliseconds: float) -> str:
    """Say an age in both forms where they differ: "264.6 s (4 min 24 s)"."""
    if milliseconds < _MINUTE:
        return age(milliseconds)
    return f"{milliseconds / _SECOND:.1f} s ({_clock(milliseconds)})"


def span(milliseconds: float) -> str:
    """Say how far two moments are apart, in one form, as the verdict does: "0.3 s", "41 s", "12 min", "3 h 12 min"."""
    if milliseconds < 10 * _SECOND:
        return f"{milliseconds / _SECOND:.1f} s"
    if milliseconds < 10 * _MINUTE:
        return f"{milliseconds / _SECOND:.0f} s"
    if milliseconds < _HOUR:
        return f"{milliseconds / _MINUTE:.0f} min"
    return _clock(milliseconds)


def size(count: float) -> str:
    """Say a number of bytes: "512 B", "5.1 kB", "20.3 MB" (powers of 1000)."""
    if abs(count) < _STEP:
        return f"{count:.0f} B"
    power = 0
    while abs(count) >= _STEP and power < len(_UNITS) - 1:
        count /= _STEP
        power += 1
    return f"{count:.1f} {_UNITS[power]}"


def rate(bytes_per_second: float) -> str:
    """Say a rate: "0 B/s", "5.1 kB/s"."""
    return f"{size(bytes_per_second)}/s"


def number(value: float) -> str:
    """Say a plain number: no decimals where there are none, separators where it is long."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.6g}"


def address(value: float) -> str:
    """Say an address or an offset: "0x1f40"."""
    return f"{int(value):#x}" if math.isfinite(value) else "?"


def count(items: int, noun: str) -> str:
    """Say how many: "1 request", "30 requests"."""
    ending = "" if items == 1 else "es" if noun.endswith("s") else "s"
    return f"{items:,} {noun}{ending}"


def magnitude(text: str) -> float | None:
    """Read back what this file says, to compare it with others of its kind; None where `text` is something else."""
    rest = text.removeprefix("at least ").removeprefix("in ").removesuffix(" ago")
    total = 0.0
    at = 0
    while at < len(rest):
        amount = _AMOUNT.match(rest, at)
        if amount is None:
            return None
        total += float(amount[1].replace(",", "")) * _MAGNITUDES[amount[2]]
        at = amount.end()
    return total if at else None


def _clock(milliseconds: float) -> str:
    if milliseconds < _HOUR:
        minutes, rest = divmod(milliseconds, _MINUTE)
        return f"{minutes:.0f} min {rest // _SECOND:.0f} s"
    if milliseconds < _DAY:
        hours, rest = divmod(milliseconds, _HOUR)
        return f"{hours:.0f} h {rest // _MINUTE:.0f} min"
    days, rest = divmod(milliseconds, _DAY)
    return f"{days:.0f} d {rest // _HOUR:.0f} h"
