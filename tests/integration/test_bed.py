"""Each wedge is what it claims to be, seen from outside: ss, /proc, the engines' metrics and the router's log."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("sglang_router", reason="needs the extra [bed]: pip install -e '.[bed]'")

from tests.bed import outside, processes
from tests.bed.bed import Bed, sweep
from tests.bed.outside import Hop
from tests.bed.wedges import WEDGES

CLIENTS = 30
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with Bed.start() as started:
        yield started


@pytest.fixture(scope="module")
def regular_bed() -> Iterator[Bed]:
    with Bed.start(regular=True) as started:
        yield started


def poll(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def owed(hop: Hop) -> int:
    """Requests of a hop whose answer has not begun, and unread ones."""
    return sum(entry.owes or entry.recv_q > 0 for entry in hop.server_end)


def used(hop: Hop) -> int:
    return sum(entry.used for entry in hop.server_end)


def metric(bed: Bed, engine: str, name: str) -> float:
    with urllib.request.urlopen(f"{bed.engines[engine].url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"sglang:{name}{{"))


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def unfinished(bed: Bed) -> set[str]:
    """Request ids that the router's log has started and not finished."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", bed.logs["router"].read_text())
    open_ids: set[str] = set()
    for line in text.splitlines():
        match = re.search(r'request_id="([^"]+)"', line)
        if match and "started processing request" in line:
            open_ids.add(match.group(1))
        elif match and re.search(r"finished processing request|request failed", line):
            open_ids.discard(match.group(1))
    return open_ids


def test_processes_look_like_the_real_ones(bed: Bed) -> None:
    pids = bed.pids
    router = Path(f"/proc/{pids.router}/cmdline").read_bytes()
    assert router.replace(b"\0", b" ").strip() == b"sglang::router"
    for name, engine in pids.engines.items():
        command = Path(f"/proc/{engine.http}/cmdline").read_text().split("\0")
        assert command[1:3] == ["-m", "sglang.launch_server"]
        assert command[command.index("--disaggregation-mode") + 1] == name
        for pid, title in ((engine.scheduler, "sglang::scheduler"), (engine.detokenizer, "sglang::detokenizer")):
            assert Path(f"/proc/{pid}/cmdline").read_text().strip(" \0") == title
            assert Path(f"/proc/{pid}/comm").read_text().strip() == title[:15]
            assert f"\nPPid:\t{engine.http}\n" in Path(f"/proc/{pid}/status").read_text()
        maps = Path(f"/proc/{engine.scheduler}/maps").read_text()
        assert f"gauge_mostrecent_{engine.scheduler}.db" in maps


def test_output_of_every_program_is_a_regular_file(bed: Bed) -> None:
    for name, pid in (("router", bed.pids.router), ("harness", bed.pids.harness), ("decode", bed.pids.decode.http)):
        assert os.readlink(f"/proc/{pid}/fd/1") == str(bed.logs[name])
        assert os.readlink(f"/proc/{pid}/fd/2") == str(bed.logs[name])


def test_memory_is_capped(bed: Bed) -> None:
    for pid in bed.pids.all():
        limit = re.search(r"^Max data size +(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
        assert limit is not None
        assert int(limit.group(1)) == (2048 if pid == bed.pids.router else 1024) << 20


def test_none_serves_every_client(bed: Bed) -> None:
    with bed.wedged("none") as before:
        poll(lambda: bed.truth().completed >= before.completed + 2 * CLIENTS, "two more answers per client")
        assert bed.truth().failed == before.failed
        assert len(outside.hops(bed)["harness>router"].client_end) == CLIENTS


def test_idle_keeps_connections_and_owes_nothing(bed: Bed) -> None:
    with bed.wedged("idle") as truth:
        assert truth.requests == ()
        hops = outside.hops(bed)
        assert len(hops["harness>router"].client_end) == CLIENTS
        assert [owed(hop) for hop in hops.values()] == [0, 0, 0]


def test_router_dual_leg(bed: Bed) -> None:
    with bed.wedged("router-dual-leg"):
        truth = bed.wait_wedged(settled=True)
        hops = outside.hops(bed)
        assert len(hops["harness>router"].client_end) == owed(hops["harness>router"]) == CLIENTS
        assert used(hops["router>prefill"]) == owed(hops["router>prefill"]) == CLIENTS
        assert used(hops["router>decode"]) == 0
        assert metric(bed, "prefill", "http_requests_active") == CLIENTS + 1  # and this very one
        assert metric(bed, "decode", "http_requests_active") == 1
        assert {request.state for request in truth.requests} == {"sent"}
        assert unfinished(bed) >= {request.request_id for request in truth.requests}
        assert len(truth.engines["prefill"]["in_flight"]) == CLIENTS


def test_stray_client_streams_while_thirty_hang(bed: Bed) -> None:
    with bed.wedged("stray-client"):
        bed.wait_wedged(settled=True)
        first = outside.hops(bed)
        received = first["stray>decode"].client_end[0].bytes_received
        tokens = metric(bed, "decode", "realtime_tokens_total")
        poll(
            lambda: sum(c.bytes_received for c in outside.hops(bed)["stray>decode"].client_end) > received + 2000,
            "the stray's bytes to move",
        )
        poll(lambda: metric(bed, "decode", "realtime_tokens_total") >= tokens + 40, "tokens to be counted")
        assert 20 < metric(bed, "decode", "gen_throughput") < 55
        after = outside.hops(bed)
        for name in ("harness>router", "router>prefill"):
            assert owed(after[name]) == CLIENTS
            assert sum(c.bytes_received for c in after[name].client_end) == sum(
                c.bytes_received for c in first[name].client_end
            )
        assert used(after["router>decode"]) == 0
        assert len(after["stray>decode"].client_end) == 1


def test_engine_silent(bed: Bed) -> None:
    with bed.wedged("engine-silent") as truth:
        assert truth.engines["decode"]["silenced"] == CLIENTS
        assert truth.engines["decode"]["scheduler"]["num_decode_transfer_queue_reqs"] == 0
        hops = outside.hops(bed)
        assert used(hops["router>decode"]) >= CLIENTS
        assert all(entry.recv_q == 0 and entry.pid for entry in hops["router>decode"].server_end)
        assert metric(bed, "decode", "http_requests_active") == CLIENTS + 1


def test_engine_silent_in_a_chosen_engine(bed: Bed) -> None:
    with bed.wedged("engine-silent", engine="prefill") as truth:
        assert truth.engines["prefill"]["silenced"] == CLIENTS
        assert truth.engines["decode"]["scheduler"]["num_decode_transfer_queue_reqs"] == CLIENTS


@pytest.mark.parametrize(
    ("wedge", "function"), [("engine-loop-blocked", "render_in_sleep"), ("engine-loop-locked", "render_behind_lock")]
)
def test_engine_loop_blocked(bed: Bed, wedge: str, function: str) -> None:
    with bed.wedged(wedge):
        hop = outside.hops(bed)["router>decode"]
        assert sum(entry.recv_q > 0 for entry in hop.server_end) == CLIENTS - 1
        assert owed(hop) >= CLIENTS - 1
        http = bed.pids.decode.http
        before = cpu_ticks(http)
        assert state(http) == "S"
        py_spy = str(Path(sys.executable).with_name("py-spy"))
        dump = subprocess.run(
            [py_spy, "dump", "--nonblocking", "--pid", str(http)], capture_output=True, text=True, check=False
        )
        assert f"    {function} (" in dump.stdout, dump.stderr
        assert cpu_ticks(http) - before <= 2


def test_engine_not_accepting(bed: Bed) -> None:
    with bed.wedged("engine-not-accepting"):
        hop = outside.hops(bed)["router>decode"]
        assert hop.backlog == CLIENTS
        assert sum(entry.pid is None and entry.recv_q > 0 for entry in hop.server_end) == CLIENTS


def test_scheduler_queue(bed: Bed) -> None:
    with bed.wedged("scheduler-queue"):
        poll(lambda: metric(bed, "prefill", "num_queue_reqs") >= CLIENTS, "the gauge to be written")
        assert metric(bed, "prefill", "num_running_reqs") == 0


def test_router_stopped(bed: Bed) -> None:
    with bed.wedged("router-stopped") as truth:
        assert state(bed.pids.router) == "T"
        assert len(truth.requests) == CLIENTS
    assert state(bed.pids.router) != "T"
    with bed.wedged("none") as after:
        assert after.failed == truth.failed


def test_idle_spinning_burns_cpu_with_nothing_in_flight(bed: Bed) -> None:
    with bed.wedged("idle-spinning") as truth:
        assert truth.requests == ()
        schedulers = [engine.scheduler for engine in bed.pids.engines.values()]
        before = [cpu_ticks(pid) for pid in schedulers]
        for pid, ticks in zip(schedulers, before, strict=True):
            poll(lambda pid=pid, ticks=ticks: cpu_ticks(pid) > ticks + 20, "the scheduler to burn 0.2 s")


def test_slow_prefill_counts_tokens(bed: Bed) -> None:
    with bed.wedged("slow-prefill"):
        tokens = metric(bed, "prefill", "realtime_tokens_total")
        poll(lambda: metric(bed, "prefill", "realtime_tokens_total") > tokens, "prefill tokens to be counted")


def test_every_wedge_that_can_be_left_and_then_service_without_a_failure(bed: Bed) -> None:
    bed.leave()
    failed = bed.truth().failed
    for wedge in WEDGES:
        if wedge.setup == bed.setup and not wedge.spoils and wedge.name != "engine-in-D":
            with bed.wedged(wedge.name):
                assert bed.wedge.name == wedge.name
    with bed.wedged("none") as truth:
        assert truth.failed == failed


def test_scheduler_stopped(bed: Bed) -> None:
    with bed.wedged("scheduler-stopped"):
        assert state(bed.pids.decode.scheduler) == "T"
        assert state(bed.pids.decode.http) != "T"


@pytest.mark.needs("root", "fuse")
def test_engine_in_d(bed: Bed) -> None:
    with bed.wedged("engine-in-D"):
        poll(lambda: state(bed.pids.decode.http) == "D", "its main thread to be in D")
    assert state(bed.pids.decode.http) != "D"


@pytest.mark.needs("root")
def test_engine_frozen(bed: Bed) -> None:
    decode = bed.pids.decode
    with bed.wedged("engine-frozen"):
        ticks = sum(map(cpu_ticks, (decode.http, decode.scheduler, decode.detokenizer)))
        assert len(bed.client("harness", do="status")["clients"]) == CLIENTS
        assert sum(map(cpu_ticks, (decode.http, decode.scheduler, decode.detokenizer))) == ticks
    with bed.wedged("none"):
        assert bed.pids.decode == decode


@pytest.mark.needs("root")
def test_router_out_of_fds(bed: Bed) -> None:
    with bed.wedged("router-out-of-fds"):
        hop = outside.hops(bed)["harness>router"]
        assert hop.backlog == CLIENTS
        assert all(entry.pid is None and entry.recv_q > 0 for entry in hop.server_end)


def test_client_not_reading(bed: Bed) -> None:
    with bed.wedged("client-not-reading"):
        hop = outside.hops(bed)["harness>router"]
        assert sum(entry.recv_q > 1024 for entry in hop.client_end) == CLIENTS


def test_stream_stalls(bed: Bed) -> None:
    with bed.wedged("stream-stalls-after-5-tokens") as truth:
        assert truth.engines["decode"]["scheduler"]["num_running_reqs"] > 0
        tokens = metric(bed, "decode", "generation_tokens_total")
        assert metric(bed, "decode", "generation_tokens_total") == tokens


def test_a_pool_of_4_lets_4_out(bed: Bed) -> None:
    with bed.wedged("client-pool-of-4") as truth:
        assert len(truth.requests) == CLIENTS
        assert len(outside.hops(bed)["harness>router"].client_end) == 4


def test_an_engine_that_died_and_breakers_that_opened_are_mended(bed: Bed) -> None:
    with bed.wedged("engine-dead") as truth:
        assert "decode" not in truth.engines
        assert used(outside.hops(bed)["router>decode"]) == 0
    with bed.wedged("breaker-open"):
        errors = {client["last_error"] for client in bed.client("harness", do="status")["clients"]}
        assert all("503" in error for error in errors)
    with bed.wedged("none") as truth:
        assert truth.failed == 0


@pytest.mark.needs("root")
def test_no_packet_reaches_decode(bed: Bed) -> None:
    with bed.wedged("path-lossy"):
        assert bed.namespace is not None
        lines = bed.namespace.inside(outside.connections)
        port = bed.engines["decode"].port
        # A request that does not arrive, or an answer whose acknowledgement does not.
        resent = [entry for entry in lines if port in (entry.peer_port, entry.local_port) and entry.send_q > 0]
        assert resent


def test_smg() -> None:
    with Bed.start("router-dual-leg", clients=3, router="smg") as bed:
        assert Path(f"/proc/{bed.pids.router}/cmdline").read_bytes().replace(b"\0", b" ").strip() == b"smg::router"
        bed.wait_wedged()
        assert bed.client("harness", do="status")["in_flight"] < 3
        with bed.wedged("router-limit") as truth:
            assert truth.engines["decode"]["silenced"] == 3


def test_enter_under_load(bed: Bed) -> None:
    bed.enter("none")
    bed.wait_wedged()
    bed.enter("router-dual-leg", under_load=True)
    assert len(bed.wait_wedged().requests) == CLIENTS
    bed.leave()


def test_regular_bed(regular_bed: Bed) -> None:
    with regular_bed.wedged("engine-silent") as truth:
        hops = outside.hops(regular_bed)
        assert owed(hops["router>engine0"]) == CLIENTS
        assert owed(hops["router>engine1"]) == 0
        assert truth.engines["engine0"]["silenced"] == CLIENTS
    with regular_bed.wedged("stray-client"):
        assert len(outside.hops(regular_bed)["stray>engine1"].client_end) == 1
    with regular_bed.wedged("none") as truth:  # by both engines: leaving has opened no circuit breaker
        assert truth.failed == 0
        completed = metric(regular_bed, "engine0", "num_requests_total")
        poll(lambda: metric(regular_bed, "engine0", "num_requests_total") > completed, "engine0 to serve")
    with pytest.raises(ValueError, match="disaggregated"):
        regular_bed.enter("router-dual-leg")


def test_two_beds_at_once_and_nothing_is_left(tmp_path: Path) -> None:
    shared_memory = set(os.listdir("/dev/shm"))
    with Bed.start("router-dual-leg", clients=3) as one, Bed.start("none", clients=3) as two:
        one.wait_wedged()
        two.wait_wedged()
        pids = one.pids.all() + two.pids.all()
        folders = [one.run_dir, two.run_dir]
    assert [pid for pid in pids if not processes.ended(pid)] == []
    assert [folder for folder in folders if folder.exists()] == []
    assert set(os.listdir("/dev/shm")) <= shared_memory


def start_cli(*arguments: str) -> tuple[subprocess.Popen[str], dict[str, object]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bed", "up", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def flat_pids(entry: object) -> list[int]:
    if isinstance(entry, dict):
        return [pid for value in entry.values() for pid in flat_pids(value)]
    return [entry] if isinstance(entry, int) else []


def test_command_line_runs_until_end_of_input() -> None:
    process, ready = start_cli("router-dual-leg", "--clients", "3", "--stray")
    pids = flat_pids(ready["pids"])
    assert len(pids) == 9
    assert all(not processes.ended(pid) for pid in pids)
    process.communicate("", timeout=20)
    assert process.returncode == 0
    assert [pid for pid in pids if not processes.ended(pid)] == []
    assert not Path(str(ready["run_dir"])).exists()


def test_a_killed_parent_takes_the_bed_with_it() -> None:
    process, ready = start_cli("router-dual-leg", "--clients", "3")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    poll(lambda: all(processes.ended(pid) for pid in flat_pids(ready["pids"])), "every process of the bed to end")
    sweep()
    assert not Path(str(ready["run_dir"])).exists()
