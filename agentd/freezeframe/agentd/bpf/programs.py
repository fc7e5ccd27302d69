"""What is loaded: each program file with its attachments, and what runs in its place where that cannot be."""

from __future__ import annotations

from freezeframe.agentd.bpf.layout import SIZES
from freezeframe.agentd.bpf.loader import Attachment, ProgramFile

_LIFE = (
    Attachment(function="on_exec", point="raw:sched_process_exec"),
    Attachment(function="on_exit", point="raw:sched_process_exit"),
)

LEDGER = ProgramFile(
    file="ledger.bpf.c",
    attachments=(
        *_LIFE,
        Attachment(function="on_sys_enter", point="raw:sys_enter"),
        Attachment(function="on_sys_exit", point="raw:sys_exit"),
    ),
    defines=SIZES,
    continuations=("on_frames", "on_head"),
)
