"""Schedules that were added by `schedule add`, one JSON file each: a damaged one costs no other. Blocks on the disk.

Beside NAME.json, NAME.ran says when a schedule, also one of the configuration file, captured last. A file appears whole
or not at all: written under a temporary name, synced, renamed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import typing
from dataclasses import asdict, dataclass

from freezeframe.agentd.schedules.checks import refusal
from freezeframe.agentd.schedules.schedule import NAME, Schedule
from freezeframe.agentd.store.whole import write_whole

_SUFFIX, _RAN, _TEMPORARY = ".json", ".ran", ".tmp"
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
_BYTES = 64 * 1024
# Surrogates, which JSON can have and UTF-8 cannot.
_HALVES = re.compile("[\ud800-\udfff]")
# The end of the year 9999: no clock that can be told shows more.
_LATEST = 253_402_300_799.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What the directory holds."""

    schedules: tuple[Schedule, ...] = ()
    # Name -> when it captured last, seconds since the epoch.
    ran_at: tuple[tuple[str, float], ...] = ()
    # What is wrong, one sentence per file that was left out.
    damage: tuple[str, ...] = ()


class Files:
    """The directory, made with mode 0700 when it is missing. Every call may raise OSError."""

    def __init__(self, path: str) -> None:
        """Nothing is touched yet."""
        self._path = path

    def load(self) -> Loaded:
        """Read all of it; what is damaged is left where it is, and told."""
        schedules, ran_at, damage = [], [], []
        for name in sorted(os.listdir(self._made())):
            path = os.path.join(self._path, name)
            if name.startswith(".") and name.endswith(_TEMPORARY):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            elif name.endswith(_SUFFIX):
                try:
                    schedules.append(parse(_read(path), name.removesuffix(_SUFFIX)))
                except (OSError, ValueError) as error:
                    shown = os.fsencode(path).decode(errors="backslashreplace")
                    damage.append(f"{shown}: {error.strerror if isinstance(error, OSError) else error}")
            elif name.endswith(_RAN):
                # Without it the schedule has not captured yet, as far as is known.
                with contextlib.suppress(OSError, ValueError):
                    at = float(_read(path))
                    if 0 <= at <= _LATEST:
                        ran_at.append((name.removesuffix(_RAN), at))
        return Loaded(schedules=tuple(schedules), ran_at=tuple(ran_at), damage=tuple(damage))

    def save(self, schedule: Schedule) -> None:
        """Keep one, in place of one of that name."""
        self._write(schedule.name + _SUFFIX, json.dumps(asdict(schedule), indent=1))

    def remove(self, name: str) -> None:
        """Forget one; one that is not there is no error."""
        for suffix in (_SUFFIX, _RAN):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._path, name + suffix))

    def note_run(self, name: str, at: float) -> None:
        """Keep when one captured last."""
        self._write(name + _RAN, f"{at:.3f}\n")

    def _made(self) -> str:
        os.makedirs(self._path, mode=0o700, exist_ok=True)
        return self._path

    def _write(self, name: str, text: str) -> None:
        directory = os.open(self._made(), os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        temporary = f".{name}.{secrets.token_hex(8)}{_TEMPORARY}"
        try:
            write_whole(directory, name, text.encode(), temporary=temporary)
        finally:
            os.close(directory)


def parse(text: str, name: str) -> Schedule:
    """Read one from its JSON. Raises ValueError, whose sentence says what is wrong."""
    try:
        plain = json.loads(text)
        halves = _HALVES.search(json.dumps(plain, ensure_ascii=False))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from error
    if halves:
        raise ValueError("it has half of a character in it, which cannot be sent")
    hints = typing.get_type_hints(Schedule)
    if not isinstance(plain, dict) or not {"name"} <= plain.keys() <= hints.keys():
        raise ValueError("it has other fields than a schedule")
    fields: dict[str, typing.Any] = {}
    for key, value in plain.items():
        if typing.get_origin(hints[key]) is tuple:
            right = isinstance(value, list) and all(isinstance(each, str) for each in value)
            value = tuple(value) if right else value  # noqa: PLW2901 - as the field wants it
        elif hints[key] is float:
            right = isinstance(value, (int, float)) and not isinstance(value, bool)
        else:
            right = type(value) is hints[key]
        if not right:
            raise ValueError(f"its {key} is of another kind: {str(value)[:80]!r}")
        fields[key] = value
    schedule = Schedule(**fields)
    if schedule.name != name:
        raise ValueError(f"it is of a schedule called {schedule.name[:80]!r}")
    detail, _ = refusal(schedule)
    if detail:
        raise ValueError(detail)
    return schedule


def is_name(name: str) -> bool:
    """Whether a schedule can be called that."""
    return NAME.fullmatch(name) is not None


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _FLAGS)
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read(_BYTES).decode(errors="replace")
