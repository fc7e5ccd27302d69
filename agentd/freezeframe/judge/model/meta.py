"""When and why a snapshot was taken, and how each collector ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """When, where, by what and why a snapshot was taken."""

    # Identifies the snapshot: HOST-TIME-RANDOM, safe in a file name.
    snapshot_id: str = ""
    # Name of the host that was captured.
    host: str = ""
    # Version of the agent that captured it.
    agent_version: str = ""
    # Start of the capture, RFC 3339, UTC, milliseconds.
    started_at: str = ""
    # Wall time of the whole capture, milliseconds.
    duration_ms: float = 0.0
    # What asked for it: "snap", "schedule NAME" or "trigger CONDITION".
    trigger: str = ""
    # Time between the two looks, milliseconds; 0 means one look.
    window_ms: float = 0.0
    # Boot id of the host: ages of different hosts compare only within one boot.
    boot_id: str = ""
    # CLOCK_BOOTTIME at the start, milliseconds.
    boottime_ms: float = 0.0
    # What the user said of it (--note).
    note: str = ""
    # The client named with --client: a pid or an address; empty when nobody was named.
    client: str = ""
    # True when an agent was started for this one capture and ended with it.
    embedded: bool = False
    # Schema revision of the writer: rises when fields are added.
    schema: int = 0
    # Clients that the agent's configuration names, by title or address: they matter where --client names nobody.
    usual_clients: tuple[str, ...] = ()
    # Processes named with --pid: others, but for their peers, were not looked at; empty when none was named.
    pids: tuple[int, ...] = ()
    # The schedule that asked for it; empty when a caller did.
    schedule: str = ""
    # The trigger that asked for it; None when it was none.
    triggered: Triggered | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggered:
    """The condition that made a capture happen, and what it was evaluated on."""

    # As it was given: "stuck-for=30s".
    condition: str = ""
    # What it means: "longest_wait_s >= 30".
    expression: str = ""
    # Which look after the trigger this is, from 1, and how many there are.
    look: int = 0
    looks: int = 0
    # When it fired, RFC 3339, UTC, milliseconds.
    fired_at: str = ""
    # The values that it was evaluated on when it fired, by name; "ended" names processes that had just ended.
    values: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one collector ended."""

    class Status(Enum):
        """The possible ends."""

        UNSPECIFIED = 0
        OK = 1
        PARTIAL = 2
        TIMED_OUT = 3
        UNAVAILABLE = 4
        SKIPPED = 5
        FAILED = 6

    # Name of the collector, such as snapshot_sockets.
    collector: str = ""
    # The end.
    status: Status = Status.UNSPECIFIED
    # What was being done and what came of it; empty when OK and nothing is worth saying.
    detail: str = ""
    # What to install, grant or do next; empty when nothing helps.
    hint: str = ""
    # Wall time of the collector, milliseconds.
    duration_ms: float = 0.0
    # Things looked at: processes, sockets, files.
    items: int = 0
    # Pids of targets that were not looked at, or only in part.
    pids_missed: tuple[int, ...] = ()
