"""What one run of a collector has brought so far, over all its workers, and the Outcome that follows. No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import islice

from freezeframe.agentd.frames import Done, End, Frame, Missed, Partial
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import Outcome

Status = Outcome.Status

# What the kernel says of a target that belongs to somebody else, and what helps, whichever collector was told so.
_DENIED = "ermission denied"
_TO_SEE_OTHERS = "run the agent as root or grant CAP_SYS_PTRACE"
_NUMBER = re.compile(r"(?<!\d)[0-9]{1,10}(?!\d)")
# Sentences of one kind that a detail names in full.
_NAMED = 3
_DETAIL_CHARACTERS = 2000
# With nothing kept, the worst of what happened names the outcome.
_SEVERITY = (Status.SKIPPED, Status.TIMED_OUT, Status.FAILED)


class Progress:
    """Targets done and missed, sentences, and the end."""

    def __init__(self, job: Job) -> None:
        """Start with every target to be looked at."""
        self._targets = {target.pid: target for target in job.targets}
        self._done: set[int] = set()
        self._missed: dict[int, str] = {}
        self._problems: list[str] = []
        self._partials: list[Partial] = []
        self._without_anything = Status.UNSPECIFIED
        self._end: End | None = None
        # Parts kept.
        self.parts = 0

    @property
    def done(self) -> int:
        """How many targets are finished."""
        return len(self._done)

    @property
    def ended(self) -> bool:
        """Whether the collector came to its own end."""
        return self._end is not None

    def remaining(self) -> tuple[Target, ...]:
        """Give the targets that no worker has finished with."""
        return tuple(
            target for pid, target in self._targets.items() if pid not in self._done and pid not in self._missed
        )

    @property
    def missed(self) -> frozenset[int]:
        """Give the targets that were left out, or not looked at wholly."""
        return frozenset(self._missed)

    def named_in(self, doing: str) -> tuple[int, ...]:
        """Give the targets that a sentence names, in its order: the numbers that are pids of theirs."""
        return tuple(pid for pid in map(int, _NUMBER.findall(doing)) if pid in self._targets)

    def take(self, frame: Frame) -> None:
        """Take one frame that is no part. Pids of no target of this job are left out."""
        if isinstance(frame, Done) and frame.pid in self._targets:
            self._done.add(frame.pid)
        elif isinstance(frame, Missed) and frame.pid in self._targets:
            self._missed.setdefault(frame.pid, frame.why)
        elif isinstance(frame, Partial) and len(self._partials) < 100:  # noqa: PLR2004 - more are never shown
            self._partials.append(frame)
        elif isinstance(frame, End):
            self._end = frame

    def leave_out(self, pid: int, why: str, status: Status) -> None:
        """Leave one target out; `status` is the outcome's should nothing be kept at all."""
        self._missed.setdefault(pid, why)
        self._worst(status)

    def problem(self, why: str, status: Status) -> None:
        """Say what ended the run before its time: targets not finished by now are missed."""
        self._problems.append(why)
        self._worst(status)

    def outcome(self, collector: str, duration_ms: float) -> Outcome:
        """Say how it all ended."""
        status, hint = self._status(), ""
        details = list(self._problems)
        if self._end is not None and self._end.detail:
            details.append(self._end.detail)
            hint = self._end.hint
        details += _some([f"pid {pid}: {why}" for pid, why in islice(self._missed.items(), _NAMED)], len(self._missed))
        details += _some([partial.detail for partial in self._partials[:_NAMED]], len(self._partials))
        hint = hint or next((partial.hint for partial in self._partials if partial.hint), "")
        if not hint and any(_DENIED in why for why in self._missed.values()):
            hint = _TO_SEE_OTHERS
        whole = self._end is not None and self._end.status is Status.OK
        missed = set(self._missed) if whole else set(self._targets) - self._done
        return Outcome(
            collector=collector,
            status=status,
            detail="; ".join(details)[:_DETAIL_CHARACTERS],
            hint=hint,
            duration_ms=duration_ms,
            items=len(self._targets) - len(missed) if self._done else self.parts,
            pids_missed=tuple(sorted(missed)),
        )

    def _status(self) -> Status:
        kept = bool(self.parts or self._done)
        if self._end is not None and self._end.status in (Status.UNAVAILABLE, Status.SKIPPED):
            return self._end.status if self._without_anything is Status.UNSPECIFIED else self._without_anything
        if self._end is not None and self._end.status is not Status.OK:
            return Status.PARTIAL if kept else Status.FAILED
        if not kept and self._without_anything is not Status.UNSPECIFIED:
            return self._without_anything
        return Status.PARTIAL if self._problems or self._missed or self._partials else Status.OK

    def _worst(self, status: Status) -> None:
        known = self._without_anything
        if known is Status.UNSPECIFIED or _SEVERITY.index(status) > _SEVERITY.index(known):
            self._without_anything = status


def _some(sentences: Collection[str], count: int) -> list[str]:
    more = count - len(sentences)
    return [*sentences, f"and {more} more"] if more > 0 else list(sentences)
