"""Requests by chance: whatever a client asks for, the agent opens and runs nothing but what is written down here.

The kernel tells, from outside and of every process of the agent, so what Python or gRPC do in C is seen as well.
FREEZEFRAME_RANDOM_REQUESTS=10000 asks more often.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from freezeframe.agentd.collectors import COLLECTORS
from freezeframe.agentd.host import py_spy
from freezeframe.agentd.schedules.schedule import NAME
from freezeframe.v1 import service_pb2
from tests.contract.test_service import METHODS, REQUESTS
from tests.support.daemon import running_daemon
from tests.support.names import EXECVE, EXECVEAT, OPENAT, Names, Used, traced

pytestmark = [pytest.mark.needs("root", "kernel", "e2e"), pytest.mark.timeout(3600)]

COUNT = int(os.environ.get("FREEZEFRAME_RANDOM_REQUESTS", "300"))
SERVICE = "/freezeframe.v1.CaptureService"
# Kinds of processes.
STARTING, FRONT, OTHERS, CONTROL = 1, 2, 3, 4

# A process to look at, in the namespaces of the agent: by its title a part of an engine, with a connection of its own,
# an endpoint that answers at once, and a log.
TITLE = "sglang::scheduler"
TARGET = """
import http.server, socket, sys
import setproctitle
log = open(sys.argv[1], "w")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
kept = socket.create_connection(server.server_address)
setproctitle.setproctitle(sys.argv[2])
server.serve_forever()
"""
# It and the agent are the only processes there.
ALONE = (
    "unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net",
    "sh", "-c", 'ip link set lo up; "$1" -c "$2" "$3" "$4" >&2 & shift 4; exec "$@"', "alone", sys.executable, TARGET,
)  # fmt: skip
CONFIG = """
[recorder]
enabled = false
[capture]
window_s = 0.01
max_window_s = 0.05
max_profile_s = 0.05
deadline_s = 2
max_deadline_s = 4
allow_seize = false
burst = 100000
per_minute = 1000000
"""


# What is granted, in this order; those of which an id or a recorder would be needed are left out.
GRANTED: tuple[tuple[str, Any], ...] = (
    ("Capture", service_pb2.CaptureRequest()),
    ("ListSnapshots", service_pb2.ListSnapshotsRequest(limit=3)),
    ("GetSnapshot", service_pb2.GetSnapshotRequest(snapshot_id="latest")),
    *(
        ("PutSchedule", service_pb2.PutScheduleRequest(schedule=service_pb2.Schedule(name="often", **when)))
        for when in ({"interval_s": 3600.0}, {"cron": "0 3 * * *"}, {"when": "stuck-for=30s"})
    ),
    ("ListSchedules", service_pb2.ListSchedulesRequest()),
    ("DeleteSchedule", service_pb2.DeleteScheduleRequest(name="often")),
    ("GetCapabilities", service_pb2.GetCapabilitiesRequest()),
)


def texts(bait: Path) -> st.SearchStrategy[str]:
    sound = st.sampled_from([
        *(each.name for each in COLLECTORS), "latest", "often", "127.0.0.1", "fd00::1", "[fd00::1]:80", "*/5 * * * *",
        "stuck-for=30s", "no-tokens-for=30s", "backlog", "psi=cpu.some>90", "skip", "once",
    ])  # fmt: skip
    hostile = st.sampled_from([
        str(bait), f"../../../../../..{bait}", f"file://{bait}", f"{bait};id", f"$({bait})", f"`{bait}`", f"|{bait}",
        f"--output={bait}", f"-oProxyCommand={bait}", "--help", "-", "..", "../..", ".", "/", "/etc/shadow",
        "/proc/self/mem", "/proc/1/environ", "unix:/run/x.sock", "169.254.169.254", "http://127.0.0.1/", "@x", "%n%s",
        "x\0y", "\u202e", "\r\n", "x" * 300, "../" * 2000, "gpu-07-20260102T030405-0001", "{{7*7}}", "__import__('os')",
    ])  # fmt: skip
    return st.one_of(sound, hostile, st.text(max_size=30))


@st.composite
def messages(draw: st.DrawFn, kind: Any, scalars: dict[int, st.SearchStrategy[Any]]) -> Message:
    """A message of `kind` with any of its fields."""
    message: Message = kind()
    for field in kind.DESCRIPTOR.fields:
        if not draw(st.booleans()):
            continue
        value = getattr(message, field.name)
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            value.CopyFrom(draw(messages(type(value), scalars)))
        elif hasattr(value, "extend"):
            value.extend(draw(st.lists(scalars[field.cpp_type], max_size=3)))
        else:
            setattr(message, field.name, draw(scalars[field.cpp_type]))
    return message


def requests(bait: Path) -> st.SearchStrategy[tuple[str, bytes]]:
    """An RPC and the bytes of its request: a message with any fields, one that may well be granted, or any bytes."""
    text = texts(bait)
    scalars: dict[int, st.SearchStrategy[Any]] = {
        FieldDescriptor.CPPTYPE_STRING: text,
        FieldDescriptor.CPPTYPE_DOUBLE: st.one_of(
            st.sampled_from([0.0, 1.0, 20.0, 1500.0, -1.0, 1e308, float("nan"), float("inf")]), st.floats()
        ),
        FieldDescriptor.CPPTYPE_UINT32: st.one_of(st.integers(1, 30), st.integers(0, 2**32 - 1)),
        FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    }
    collectors = st.lists(st.sampled_from([each.name for each in COLLECTORS]), max_size=2)
    granted = st.builds(
        service_pb2.CaptureRequest,
        window_ms=st.sampled_from([0.0, 20.0]), pids=st.lists(st.integers(1, 8), max_size=2), only=collectors,
        note=text, profile_s=st.sampled_from([0.0, 0.05]), client_address=st.sampled_from(["127.0.0.1", "fd00::1"]),
    )  # fmt: skip
    any_bytes = st.tuples(st.one_of(st.sampled_from(sorted(METHODS)), st.text(max_size=9)), st.binary(max_size=200))
    return st.one_of(
        *(
            st.tuples(st.just(rpc), messages(type(request), scalars).map(lambda each: each.SerializeToString()))
            for rpc, request in REQUESTS.items()
        ),
        st.tuples(st.just("Capture"), granted.map(lambda each: each.SerializeToString())),
        any_bytes,
    )


def ask(channel: grpc.Channel, rpc: str, data: bytes) -> str:
    """Call; gives the code. Of what has no end of its own one message is enough."""
    call = channel.unary_stream(f"{SERVICE}/{rpc}")(data, timeout=60.0)
    try:
        for _ in call:
            if rpc == "Watch":
                call.cancel()
                break
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


# What may be opened, written, renamed or removed. By the front: names in the store's directory alone, which it opened
# before, and schedules; no name of either kind can lead out of there.
_IN_THE_STORE = re.compile(r"\.?[A-Za-z0-9][\w.-]*\.(ffz|pin|copied|json|tmp)", re.ASCII)
_SCHEDULE = rf"/schedules(/{NAME.pattern}\.(json|ran|tmp))?"
# By the launcher, its workers and the supervisor. Of a target never its memory or environment, and of its files the log
# that it writes to, its program and library, and the directories in which PyTorch leaves its dumps.
_PROCESS = r"cgroup|cmdline|exe|fd(/\d+)?|fdinfo/\d+|limits|map_files/[0-9a-f]+-[0-9a-f]+|maps|ns/net|stat|status|task"
_THREAD = "children|schedstat|stack|stat|status|syscall|wchan"
_HOST = (
    rf"/|/proc(/\d+/({_PROCESS}|task/\d+/({_THREAD})))?"
    r"|/proc/\d+/root/(home|tmp(/[\w.-]+)?|([\w.-]+/)+\.cache/torch|([\w.-]+/)+libpython3[\w.]+)"
    r"|/proc/(loadavg|meminfo|mounts|uptime|vmstat|pressure/(cpu|io|memory)|driver/nvidia/version|thread-self/ns/net)"
    r"|/proc/self/(fd|mountinfo|oom_score_adj|status)"
    r"|/sys/(devices/system/cpu/online|kernel/security/lockdown)"
    r"|/sys/fs/cgroup/([\w.@:-]+/)*(cgroup\.events|freezer\.state|cpu\.[\w.]+|memory\.[\w.]+)"
    r"|/dev/(kmsg|null|nvidia[\w-]*)|/etc/os-release"
    r"|/usr/lib/debug/\.build-id/[0-9a-f]{2}/[0-9a-f]+\.debug"
)
_SYMBOLS = r"/symbols(/[\w.-]+)?"
# What Python loads when it needs it first, and where it looks for that.
_MODULES = "|".join(re.escape(each) for each in {sys.prefix, sys.base_prefix, *filter(None, sys.path)})
_MODULE = r"(/[\w.-]+)*(/[\w.-]+\.(pyc|so)|/py_spy-[\d.]+\.dist-info/(METADATA|RECORD))"
_PROGRAMS = (py_spy.locate(),)


def is_allowed(each: Used, state: Path, logs: Path) -> bool:
    if each.call in (EXECVE, EXECVEAT):
        return each.kind == OTHERS and each.name in _PROGRAMS
    if each.below:
        return each.kind == FRONT and _IN_THE_STORE.fullmatch(each.name) is not None
    front = (re.escape(str(state)) + _SCHEDULE,)
    others = (
        _HOST, re.escape(str(state)) + _SYMBOLS, rf"/proc/\d+/root{re.escape(str(logs))}", rf"({_MODULES})({_MODULE})?",
    )  # fmt: skip
    return any(re.fullmatch(pattern, each.name) for pattern in (front if each.kind == FRONT else others))


def name_kinds(names: Names, pid: int) -> int:
    """Say of every process of the agent which kind it is, parents first, so that none is missed that starts now.

    Gives how many processes there are to look at, which are none of the agent's.
    """
    waiting, targets = [pid], 0
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[0].startswith(TITLE.encode()):
                targets += 1
                continue
            names.follow(pid, FRONT if b"freezeframe.agentd.composition" in words else OTHERS)
            for each in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (each / "children").read_text().split())
    return targets


def test_whatever_is_asked_nothing_is_opened_or_run_that_is_not_listed(tmp_path: Path) -> None:
    private = tmp_path / "programs"
    private.mkdir(mode=0o700)
    bait = tmp_path / "bait"
    bait.write_text("#!/bin/sh\n")
    bait.chmod(0o755)
    config = tmp_path / "agentd.toml"
    config.write_text(CONFIG)
    codes: Counter[tuple[str, str]] = Counter()
    with traced(private) as names, contextlib.ExitStack() as stack:
        with names.following_children_of(os.getpid(), STARTING):
            daemon = stack.enter_context(
                running_daemon("--config", str(config), inside=(*ALONE, str(tmp_path / "target.log"), TITLE))
            )
        with names.following_children_of(os.getpid(), CONTROL):
            subprocess.run(["sh", "-c", f"{bait}; cat {bait}; cat {bait}-not-there"], check=False, capture_output=True)
        channel = stack.enter_context(grpc.insecure_channel(daemon.socket("admin")))
        # What is loaded at the first of each kind is loaded now.
        for rpc, request in REQUESTS.items():
            ask(channel, rpc, request.SerializeToString())
        ask(channel, "None", b"")
        ask(channel, "Capture", b"\xff")
        assert name_kinds(names, daemon.pid) == 1

        @seed(1)
        @settings(
            max_examples=COUNT, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(requests(bait))
        def every(request: tuple[str, bytes]) -> None:
            rpc, data = request
            codes[rpc if rpc in METHODS else "others", ask(channel, rpc, data)] += 1

        for rpc, request in GRANTED:
            assert ask(channel, rpc, request.SerializeToString()) == "OK", rpc
        every()
        used = names.used()
        assert names.lost() == 0
        log = daemon.log.read_text()

    def of(kind: int, *calls: int) -> set[str]:
        return {each.name for each in used if each.kind == kind and (not calls or each.call in calls)}

    unexpected = sorted(
        f"{each.kind} {each.call} {each.below} {each.name}"
        for each in used
        if each.kind in (FRONT, OTHERS) and not is_allowed(each, daemon.state_dir, tmp_path)
    )
    print(f"{codes.total()} requests: {dict(codes)}; names: {len(of(FRONT))} of the front, {len(of(OTHERS))} of others")
    assert not unexpected, "\n".join(unexpected[:50])
    # All of it is seen: what is run, opened, and tried in vain.
    assert str(bait) in of(CONTROL, EXECVE)
    assert {str(bait), f"{bait}-not-there"} <= of(CONTROL, OPENAT)
    assert of(FRONT)
    assert "/proc/loadavg" in of(OTHERS)
    assert codes.total() == COUNT
    assert {"INVALID_ARGUMENT", "UNIMPLEMENTED", "NOT_FOUND"} <= {code for _, code in codes}
    assert "UNKNOWN" not in {code for _, code in codes}
    assert "Traceback" not in log
