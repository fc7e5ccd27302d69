"""One file per collector, named verb_noun. The list is written out: what runs as root must show in a diff."""

from __future__ import annotations

from freezeframe.agentd.collectors.contract import Collector
from freezeframe.agentd.collectors.find_callers import FIND_CALLERS
from freezeframe.agentd.collectors.find_processes import FIND_PROCESSES
from freezeframe.agentd.collectors.read_command_lines import READ_COMMAND_LINES
from freezeframe.agentd.collectors.read_debug_traces import READ_DEBUG_TRACES
from freezeframe.agentd.collectors.read_gauges import READ_GAUGES
from freezeframe.agentd.collectors.read_history import READ_HISTORY
from freezeframe.agentd.collectors.read_kernel_log import READ_KERNEL_LOG
from freezeframe.agentd.collectors.read_logs import READ_LOGS
from freezeframe.agentd.collectors.run_hook import RUN_HOOK
from freezeframe.agentd.collectors.sample_metrics import SAMPLE_METRICS
from freezeframe.agentd.collectors.sample_stacks import SAMPLE_STACKS
from freezeframe.agentd.collectors.snapshot_asyncio_tasks import SNAPSHOT_ASYNCIO_TASKS
from freezeframe.agentd.collectors.snapshot_gpus import SNAPSHOT_GPUS
from freezeframe.agentd.collectors.snapshot_host import SNAPSHOT_HOST
from freezeframe.agentd.collectors.snapshot_locks import SNAPSHOT_LOCKS
from freezeframe.agentd.collectors.snapshot_native_stacks import SNAPSHOT_NATIVE_STACKS
from freezeframe.agentd.collectors.snapshot_processes import SNAPSHOT_PROCESSES
from freezeframe.agentd.collectors.snapshot_python_stacks import SNAPSHOT_PYTHON_STACKS
from freezeframe.agentd.collectors.snapshot_sockets import SNAPSHOT_SOCKETS
from freezeframe.agentd.collectors.trace_futex import TRACE_FUTEX
from freezeframe.agentd.collectors.trace_requests import TRACE_REQUESTS
from freezeframe.agentd.collectors.watch_edges import WATCH_EDGES
from freezeframe.agentd.collectors.watch_gauges import WATCH_GAUGES
from freezeframe.agentd.collectors.watch_gpus import WATCH_GPUS
from freezeframe.agentd.collectors.watch_path import WATCH_PATH

# The first three are first steps of a capture, the last five belong to none; the others in the order in which they
# are shown.
COLLECTORS: tuple[Collector, ...] = (
    FIND_PROCESSES,
    READ_COMMAND_LINES,
    FIND_CALLERS,
    SNAPSHOT_PROCESSES,
    SNAPSHOT_PYTHON_STACKS,
    SNAPSHOT_ASYNCIO_TASKS,
    SNAPSHOT_NATIVE_STACKS,
    SNAPSHOT_LOCKS,
    SAMPLE_STACKS,
    SNAPSHOT_SOCKETS,
    TRACE_REQUESTS,
    TRACE_FUTEX,
    SAMPLE_METRICS,
    READ_GAUGES,
    SNAPSHOT_GPUS,
    READ_DEBUG_TRACES,
    READ_LOGS,
    READ_KERNEL_LOG,
    SNAPSHOT_HOST,
    READ_HISTORY,
    WATCH_EDGES,
    WATCH_GAUGES,
    WATCH_GPUS,
    WATCH_PATH,
    RUN_HOOK,
)
