"""Times and lengths of time, as formats want them; a file can come from anybody, and say what no clock does."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# With some lengths of time added, its nanoseconds still fit 63 bits.
_LATEST = datetime(2200, 1, 1, tzinfo=timezone.utc)
# Ten years: nothing that is captured is older.
_LONGEST_MS = 3650 * 86_400_000.0


def moment(told: str) -> datetime:
    """Read a moment of the wire, RFC 3339, from 1970 to 2200; the epoch where it is none."""
    try:
        # Python 3.10 knows no "Z".
        known = datetime.fromisoformat(told.replace("Z", "+00:00"))
    except ValueError:
        return _EPOCH
    return min(max(known if known.tzinfo else known.replace(tzinfo=timezone.utc), _EPOCH), _LATEST)


def unix_ns(told: str) -> int:
    """Nanoseconds since 1970."""
    return (moment(told) - _EPOCH) // timedelta(microseconds=1) * 1000


def earlier(known: datetime, milliseconds: float) -> datetime:
    """Give the moment so long before `known`, 1970 at the earliest."""
    return max(known - timedelta(microseconds=length_ns(milliseconds) // 1000), _EPOCH)


def length_ns(milliseconds: float) -> int:
    """Nanoseconds of a length of time, up to ten years; 0 where it is none."""
    return 0 if math.isnan(milliseconds) else round(min(max(milliseconds, 0.0), _LONGEST_MS) * 1e6)
