"""What a client asks for, as the agent grants it: the agent's limits are the last word, nothing is cut silently."""

from __future__ import annotations

import difflib
import ipaddress
import math
from collections.abc import Collection, Iterable

from freezeframe.agentd.capture import CaptureSpec
from freezeframe.agentd.config import CaptureLimits
from freezeframe.agentd.errors import BadRequestError, UnknownCollectorError
from freezeframe.agentd.host import rfc3339
from freezeframe.agentd.host.text import escape
from freezeframe.agentd.schedules.runner import Entry
from freezeframe.agentd.schedules.schedule import Schedule
from freezeframe.v1 import service_pb2

# The kernel's highest pid_max.
_MAX_PID = 4_194_304
_MAX_PIDS = 1000
_MAX_PORT = 65_535
_MAX_PORTS = 1000
_MAX_NOTE_BYTES = 4096
# What a profile needs with the unwinding of its samples, as a multiple of its length.
_PROFILE_SHARE = 1.5


def capture_spec(
    request: service_pb2.CaptureRequest, limits: CaptureLimits, collectors: Collection[str]
) -> CaptureSpec:
    """Turn a request into a spec; equal requests give equal specs. Raises BadRequestError, UnknownCollectorError."""
    window_ms = limits.window_s * 1000.0
    if request.HasField("window_ms"):
        window_ms = _bounded("--window", request.window_ms, limits.max_window_s, "capture.max_window_s")
    profile_ms = _bounded("--profile", request.profile_s * 1000.0, limits.max_profile_s, "capture.max_profile_s")
    # Without a deadline of the client's, what it asks for fits.
    beside_ms = max(window_ms, profile_ms * _PROFILE_SHARE)
    deadline_ms = min(limits.deadline_s * 1000.0 + beside_ms, limits.max_deadline_s * 1000.0)
    if request.HasField("deadline_ms"):
        deadline_ms = _bounded("--deadline", request.deadline_ms, limits.max_deadline_s, "capture.max_deadline_s")
    if deadline_ms <= max(window_ms, profile_ms):
        raise BadRequestError(
            f"a deadline of {deadline_ms / 1000:g} s leaves no time beside a window or profile of "
            f"{max(window_ms, profile_ms) / 1000:g} s",
            "raise --deadline or lower --window and --profile",
        )
    if request.allow_seize and not limits.allow_seize:
        raise BadRequestError(
            "--allow-seize is not allowed on this host", "allow it in the agent's configuration: capture.allow_seize"
        )
    only = _names(request.only, collectors)
    skip = _names(request.skip, collectors)
    if only and set(only) <= set(skip):
        raise BadRequestError("--only and --skip leave no collector", "take one of them away")
    note = request.note.encode("utf-8", "surrogatepass")
    if len(note) > _MAX_NOTE_BYTES:
        raise BadRequestError(f"--note has {len(note):,} bytes; at most {_MAX_NOTE_BYTES:,} are kept", "shorten it")
    return CaptureSpec(
        window_ms=window_ms,
        deadline_ms=deadline_ms,
        pids=_pids(request.pids),
        client_pid=_pid(request.client_pid) if request.HasField("client_pid") else None,
        client_address=_address(request.client_address) if request.HasField("client_address") else "",
        only=only,
        skip=skip,
        profile_s=request.profile_s,
        allow_seize=request.allow_seize,
        note=escape(note),
        toward=_ports(request.toward),
    )


def schedule(message: service_pb2.Schedule, limits: CaptureLimits, collectors: Collection[str]) -> Schedule:
    """Turn a message into a schedule; whether it can be is for `schedules.checks`. Raises BadRequestError."""
    request = message.capture
    if request.pids or request.WhichOneof("client") or request.profile_s or request.allow_seize:
        raise BadRequestError(
            "a schedule captures the serving path: it takes no pid, client, profile or seizing", "leave them out"
        )
    spec = capture_spec(request, limits, collectors)
    defaults = Schedule(name="")
    return Schedule(
        name=message.name,
        every_s=message.interval_s,
        cron=message.cron,
        when=message.when,
        jitter_s=message.jitter_s,
        missed=message.missed or defaults.missed,
        hold_s=message.hold_s,
        clear_s=message.clear_s if message.HasField("clear_s") else defaults.clear_s,
        cool_down_s=message.cool_down_s if message.HasField("cool_down_s") else defaults.cool_down_s,
        keep=message.keep,
        window_s=spec.window_ms / 1000.0,
        deadline_s=spec.deadline_ms / 1000.0,
        only=spec.only,
        skip=spec.skip,
        note=spec.note,
    )


def schedule_message(entry: Entry) -> service_pb2.Schedule:
    """Tell of a schedule and where it stands."""
    schedule = entry.schedule
    return service_pb2.Schedule(
        name=schedule.name,
        interval_s=schedule.every_s,
        cron=schedule.cron,
        when=schedule.when,
        capture=service_pb2.CaptureRequest(
            window_ms=schedule.window_s * 1000.0,
            deadline_ms=schedule.deadline_s * 1000.0,
            only=schedule.only,
            skip=schedule.skip,
            note=schedule.note,
        ),
        next_at=rfc3339(entry.due) if entry.due is not None and math.isfinite(entry.due) else "",
        jitter_s=schedule.jitter_s,
        missed=schedule.missed,
        keep=schedule.keep,
        hold_s=entry.trigger.hold_s if entry.trigger is not None else 0.0,
        clear_s=schedule.clear_s if schedule.when else None,
        cool_down_s=schedule.cool_down_s if schedule.when else None,
        expression=entry.condition.expression if entry.condition is not None else "",
        configured=entry.configured,
        last_at=rfc3339(entry.ran_at) if entry.ran_at is not None else "",
        last=entry.last,
    )


def _bounded(option: str, value_ms: float, max_s: float, key: str) -> float:
    if not math.isfinite(value_ms) or value_ms < 0:
        raise BadRequestError(f"{option} must be a number of seconds, 0 or more", f"give {option} from 0 to {max_s:g}")
    if value_ms > max_s * 1000.0:
        raise BadRequestError(
            f"{option} {value_ms / 1000:g} is more than this agent allows ({max_s:g} s)",
            f"lower it, or raise {key} in the agent's configuration",
        )
    return value_ms


def _pid(pid: int) -> int:
    if not 0 < pid <= _MAX_PID:
        raise BadRequestError(f"{pid} is no pid", f"a pid is a number from 1 to {_MAX_PID}")
    return pid


def _pids(pids: Collection[int]) -> tuple[int, ...]:
    if len(pids) > _MAX_PIDS:
        raise BadRequestError(f"{len(pids):,} pids were given; at most {_MAX_PIDS:,} are taken", "give the leaders")
    return tuple(sorted({_pid(pid) for pid in pids}))


def _ports(ports: Collection[int]) -> tuple[int, ...]:
    if len(ports) > _MAX_PORTS:
        raise BadRequestError(
            f"{len(ports):,} ports of other hosts were given; at most {_MAX_PORTS:,} are taken",
            "capture the hosts in parts",
        )
    if wrong := [port for port in ports if not 0 < port <= _MAX_PORT]:
        raise BadRequestError(f"{wrong[0]} is no port", f"a port is a number from 1 to {_MAX_PORT}")
    return tuple(sorted(set(ports)))


def _address(text: str) -> str:
    """Give "10.0.0.7", "10.0.0.7:4000", "fd00::1" or "[fd00::1]:4000" in one spelling."""
    host, port = text, ""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        bracket_is_right = port == "" or port.startswith(":")
        host, port = (host, port.removeprefix(":")) if bracket_is_right else ("", "")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        address = ipaddress.ip_address(host)
        if not port:
            return str(address)
        number = int(port) if port.isascii() and port.isdecimal() else 0
    except ValueError:
        number = 0
    if not 0 < number <= _MAX_PORT:
        raise BadRequestError(f"{text[:100]!r} is no client", "--client takes a pid or an address such as 10.0.0.7")
    return f"[{address}]:{number}" if address.version == 6 else f"{address}:{number}"  # noqa: PLR2004 - IPv6


def _names(names: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name[:100], known, n=1)
            raise UnknownCollectorError(
                f"reading --only and --skip: there is no collector {name[:100]!r}",
                f"did you mean {near[0]}?" if near else f"collectors: {', '.join(sorted(known))}",
            )
    return tuple(sorted(set(names)))
