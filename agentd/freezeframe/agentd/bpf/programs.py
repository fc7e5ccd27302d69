"""What is loaded: each program file with its attachments, and what runs in its place where that cannot be."""

from __future__ import annotations

from freezeframe.agentd.bpf.compiled import Attachment, ProgramFile
from freezeframe.agentd.bpf.layout import SIZES, SOCKET_EVENTS

_LIFE = (
    Attachment(function="on_exec", point="raw:sched_process_exec"),
    Attachment(function="on_exit", point="raw:sched_process_exit"),
    Attachment(function="on_switch", point="raw:sched_switch"),
)


def _continuations(point: str) -> tuple[Attachment, ...]:
    return tuple(Attachment(function=name, point=point) for name in ("on_frames", "on_head"))


# Where registers may not be read (lockdown=confidentiality): twice the cost, by the arguments that an event carries.
_LEDGER_FROM_EVENTS = ProgramFile(
    file="ledger.bpf.c",
    attachments=(
        *_LIFE,
        Attachment(function="on_sys_enter", point="tracepoint:raw_syscalls:sys_enter"),
        Attachment(function="on_sys_exit", point="tracepoint:raw_syscalls:sys_exit"),
    ),
    defines=(*SIZES, ("FROM_TRACEPOINTS", 1)),
    continuations=_continuations("tracepoint:raw_syscalls:sys_exit"),
    needs_tracefs=True,
)

# Where the kernel does not tell its types (CONFIG_DEBUG_INFO_BTF): registers cost a call each time.
_LEDGER_UNTYPED = ProgramFile(
    file="ledger.bpf.c",
    attachments=(*_LIFE, Attachment(function="on_sys_exit", point="raw:sys_exit")),
    defines=SIZES,
    continuations=_continuations("raw:sys_exit"),
    otherwise=_LEDGER_FROM_EVENTS,
)

LEDGER = ProgramFile(
    file="ledger.bpf.c",
    attachments=(*_LIFE, Attachment(function="on_sys_exit", point="typed:sys_exit")),
    defines=(*SIZES, ("TYPED_REGISTERS", 1)),
    continuations=_continuations("typed:sys_exit"),
    otherwise=_LEDGER_UNTYPED,
)

# Connections as the kernel sees them open, close and fail; its events are attached by name while it is compiled.
SOCKETS = ProgramFile(
    file="sockets.bpf.c",
    defines=(("EVENTS", SOCKET_EVENTS),),
    needs_tracefs=True,
)

# Which processes have io_uring carry bytes of sockets: what it carries is not seen. Its event is called
# io_uring_submit_req since 6.3, io_uring_submit_sqe before.
URING = ProgramFile(
    file="uring.bpf.c",
    needs_tracefs=True,
    otherwise=ProgramFile(file="uring.bpf.c", defines=(("SUBMIT_SQE", 1),), needs_tracefs=True),
)
