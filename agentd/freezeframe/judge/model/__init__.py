"""The data that every room shares: frozen dataclasses, one per message of freezeframe.v1.

Each has the fields of its message, with the same names and units; an optional field is None when it is unknown.
Standard library only, no behaviour.
"""

from freezeframe.judge.model.host import (
    Filesystem,
    Gpu,
    GpuProcess,
    History,
    Host,
    KernelEvent,
    Pressure,
    Series,
    Throttle,
)
from freezeframe.judge.model.logs import LogFinding, LogRequest, LogSource
from freezeframe.judge.model.meta import Meta, Outcome, Triggered
from freezeframe.judge.model.metrics import DebugTrace, Endpoint, Metric, Rank
from freezeframe.judge.model.processes import Process, Thread
from freezeframe.judge.model.profiles import ProfileFrame, ProfileStack, ProfileThread, ProfileWait
from freezeframe.judge.model.requests import ConnectionEnd, RecorderState, Request
from freezeframe.judge.model.snapshot import Snapshot
from freezeframe.judge.model.sockets import Edge, Hop, Socket
from freezeframe.judge.model.stacks import (
    AsyncioTask,
    Frame,
    Lock,
    NativeFrame,
    NativeThread,
    PythonThread,
    TaskEdge,
    Waiter,
)
from freezeframe.judge.model.traces import ConnectionEvent, FutexAddress, FutexWait
from freezeframe.judge.model.verdict import Attribution, Confidence, Evidence, RuledOut, Verdict

__all__ = [
    "AsyncioTask",
    "Attribution",
    "Confidence",
    "ConnectionEnd",
    "ConnectionEvent",
    "DebugTrace",
    "Edge",
    "Endpoint",
    "Evidence",
    "Filesystem",
    "Frame",
    "FutexAddress",
    "FutexWait",
    "Gpu",
    "GpuProcess",
    "History",
    "Hop",
    "Host",
    "KernelEvent",
    "Lock",
    "LogFinding",
    "LogRequest",
    "LogSource",
    "Meta",
    "Metric",
    "NativeFrame",
    "NativeThread",
    "Outcome",
    "Pressure",
    "Process",
    "ProfileFrame",
    "ProfileStack",
    "ProfileThread",
    "ProfileWait",
    "PythonThread",
    "Rank",
    "RecorderState",
    "Request",
    "RuledOut",
    "Series",
    "Snapshot",
    "Socket",
    "TaskEdge",
    "Thread",
    "Throttle",
    "Triggered",
    "Verdict",
    "Waiter",
]
