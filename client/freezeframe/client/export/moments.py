"""The time of a capture, as formats want it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def moment(told: str) -> datetime:
    """Read a moment of the wire, RFC 3339; the epoch where it is none."""
    try:
        # Python 3.10 knows no "Z".
        known = datetime.fromisoformat(told.replace("Z", "+00:00"))
    except ValueError:
        return _EPOCH
    return max(known if known.tzinfo else known.replace(tzinfo=timezone.utc), _EPOCH)


def unix_ns(told: str) -> int:
    """Nanoseconds since 1970."""
    return (moment(told) - _EPOCH) // timedelta(microseconds=1) * 1000
