"""One host at two moments: 30 requests of a harness that a router passed on to prefill, as wire messages."""

from __future__ import annotations

from freezeframe.v1 import meta_pb2, process_pb2, request_pb2, snapshot_pb2

BOOT_MS = 9_000_000.0
HARNESS, ROUTER, PREFILL = 4242, 4711, 5000
COLLECTORS = (
    "snapshot_processes", "snapshot_sockets", "snapshot_python_stacks", "snapshot_native_stacks",
    "snapshot_asyncio_tasks", "sample_metrics",
)  # fmt: skip
SERVER = request_pb2.Request.Side.SERVER


def moment(after_s: float = 0.0, *, requests: int = 30, wedged_s: float = 9.0) -> snapshot_pb2.Snapshot:
    """The host `after_s` after the first moment; its requests began `wedged_s` before that."""
    snapshot = snapshot_pb2.Snapshot()
    minute, second = divmod(int(after_s), 60)
    snapshot.meta.MergeFrom(
        meta_pb2.Meta(
            snapshot_id=f"gpu-07-{after_s}", host="gpu-07", boot_id="b", boottime_ms=BOOT_MS + 1000 * after_s,
            started_at=f"2026-01-02T03:{minute:02}:{second:02}.000Z", window_ms=1000, agent_version="0.1.0", schema=1,
        )
    )  # fmt: skip
    for collector in COLLECTORS:
        snapshot.outcomes.add(collector=collector, status=meta_pb2.Outcome.Status.OK)
    for pid, role, title in (
        (HARNESS, process_pb2.Process.Role.CLIENT, "harness.py"),
        (ROUTER, process_pb2.Process.Role.ROUTER, "sglang::router"),
        (PREFILL, process_pb2.Process.Role.ENGINE_HTTP, "sglang::http"),
    ):
        snapshot.processes.add(pid=pid, role=role, title=title, state="S", start_ticks=pid, cpu_ms=100 + after_s)
    for hop, pid in (("client", HARNESS), ("router", ROUTER), ("prefill", PREFILL)):
        snapshot.hops.add(name=hop, pids=[pid])
    age_ms = 1000 * (after_s + wedged_s)
    for number in range(requests):
        for server, client, port in ((ROUTER, HARNESS, 30000), (PREFILL, ROUTER, 31000)):
            fd = 20 + number if server == PREFILL else 100 + number
            snapshot.sockets.add(
                family="tcp", state="ESTAB", local=f"127.0.0.1:{port}", remote=f"127.0.0.1:{40000 + port + number}",
                pid=server, fd=fd, peer_pid=client, inode=port + number, bytes_in=700, bytes_out=0, netns=1,
            )  # fmt: skip
            snapshot.requests.add(
                pid=server, fd=fd, side=SERVER, age_ms=age_ms, peer_pid=client, method="POST", path="/generate",
                peer_address=f"127.0.0.1:{40000 + port + number}", source="recorder",
                request_id=f"bench-{number}" if server == ROUTER else "",
            )  # fmt: skip
    for name, value in (("sglang:num_running_reqs", 0.0), ("sglang:generation_tokens_total", 5000.0)):
        snapshot.metrics.add(name=name, value=value, pid=PREFILL, labels={"rank": "0"})
    thread = snapshot.python_threads.add(pid=HARNESS, tid=HARNESS, name="MainThread", same_at_second_look=True)
    thread.frames.add(function="select", file="selectors.py", line=468)
    native = snapshot.native_threads.add(pid=ROUTER, tid=ROUTER, name="tokio-0", same_at_second_look=True)
    native.frames.add(function="epoll_wait", module="libc.so.6", offset=0x10)
    task = snapshot.asyncio_tasks.add(pid=PREFILL, name="Task-1", address="0x1", coroutine="0x2")
    task.frames.add(function="generate", file="http.py", line=88)
    return snapshot
