"""What is loaded: each program file with its attachments, and what runs in its place where that cannot be."""

from __future__ import annotations

from freezeframe.agentd.bpf.layout import SIZES, SOCKET_EVENTS
from freezeframe.agentd.bpf.loader import Attachment, ProgramFile

_LIFE = (
    Attachment(function="on_exec", point="raw:sched_process_exec"),
    Attachment(function="on_exit", point="raw:sched_process_exit"),
    Attachment(function="on_switch", point="raw:sched_switch"),
)

_CONTINUATIONS = ("on_frames", "on_head")

# Where registers may not be read (lockdown=confidentiality): twice the cost, by the arguments that an event carries.
_LEDGER_FROM_EVENTS = ProgramFile(
    file="ledger.bpf.c",
    attachments=(
        *_LIFE,
        Attachment(function="on_sys_enter", point="tracepoint:raw_syscalls:sys_enter"),
        Attachment(function="on_sys_exit", point="tracepoint:raw_syscalls:sys_exit"),
    ),
    defines=(*SIZES, ("FROM_TRACEPOINTS", 1)),
    continuations=_CONTINUATIONS,
    needs_tracefs=True,
)

LEDGER = ProgramFile(
    file="ledger.bpf.c",
    attachments=(
        *_LIFE,
        Attachment(function="on_sys_exit", point="raw:sys_exit"),
    ),
    defines=SIZES,
    continuations=_CONTINUATIONS,
    otherwise=_LEDGER_FROM_EVENTS,
)

# Connections as the kernel sees them open, close and fail; its events are attached by name while it is compiled.
SOCKETS = ProgramFile(
    file="sockets.bpf.c",
    attachments=(),
    defines=(("EVENTS", SOCKET_EVENTS),),
    needs_tracefs=True,
)

# Which processes have io_uring carry bytes of sockets: what it carries is not seen.
URING = ProgramFile(file="uring.bpf.c", attachments=(), needs_tracefs=True)
