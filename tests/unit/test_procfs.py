from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host import Host, procfs
from freezeframe.agentd.host.cgroups import parse_cgroup
from freezeframe.agentd.host.syscalls import SYSCALL_NAMES

ID = "0123456789abcdef" * 4
HOSTILE = [
    b"x) Z 1 1", b"a\nState:\tZ", b"\x1b[2Jclr", b"\xff\xfe\xc3(", b"", b"../../../etc", b"%s%n{0}$(id)`",
    "\u202eevil".encode(),
]  # fmt: skip
ESCAPED = [
    "x) Z 1 1", "a\\x0aState:\\x09Z", "\\x1b[2Jclr", "\\xff\\xfe\\xc3(", "", "../../../etc", "%s%n{0}$(id)`",
    "\\u202eevil",
]  # fmt: skip
REST = b"S 1 2 3 0 -1 4194304 0 0 0 0 100 20 0 0 20 0 3 0 5000 4096 7 1 2 3"


@pytest.mark.parametrize(("comm", "shown"), list(zip(HOSTILE, ESCAPED, strict=True)))
def test_stat_with_a_hostile_name(comm: bytes, shown: str) -> None:
    stat = procfs.parse_stat(b"4711 (%s) %s\n" % (comm, REST))
    assert stat == procfs.Stat(
        pid=4711,
        comm=shown,
        state="S",
        parent_pid=1,
        kernel_thread=False,
        cpu_ms=1200.0,
        thread_count=3,
        start_ticks=5000,
        rss_bytes=7 * os.sysconf("SC_PAGE_SIZE"),
    )


def test_a_thread_of_the_kernel_is_told_by_its_flag() -> None:
    assert procfs.parse_stat(b"2 (kthreadd) " + REST.replace(b"4194304", b"2129984")).kernel_thread


@pytest.mark.parametrize("data", [b"", b"1", b"1 (a", b"1 (a) S", b"x (a) " + REST, b"1 (a) S " + b"z " * 40])
def test_what_is_no_stat_is_said_so(data: bytes) -> None:
    with pytest.raises(procfs.UnreadableError, match="reading stat: "):
        procfs.parse_stat(data)


def test_run_delay() -> None:
    assert procfs.parse_run_delay(b"200000000 50500000 9\n") == 50.5
    with pytest.raises(procfs.UnreadableError, match="reading schedstat: "):
        procfs.parse_run_delay(b"0\n")


def test_status() -> None:
    data = (
        b"Name:\ta\\nTracerPid:\\t9\nUmask:\t0022\nState:\tS (sleeping)\nTracerPid:\t77\nUid:\t1000\t0\t0\t0\n"
        b"NSpid:\t4711\t12\t1\nvoluntary_ctxt_switches:\t8\nnonvoluntary_ctxt_switches:\t9\n"
    )
    assert procfs.parse_status(data) == procfs.Status(
        uid=1000, tracer_pid=77, namespace_pids=(4711, 12, 1), voluntary_switches=8, involuntary_switches=9
    )
    with pytest.raises(procfs.UnreadableError):
        procfs.parse_status(b"Name:\tx\n")


def test_syscall() -> None:
    parsed = procfs.parse_syscall(b"202 0x7f10 0x189 0x0 0x0 0x0 0xffffffff 0x7ffc 0x7f11\n", "x86_64")
    assert parsed == procfs.Syscall(
        name="futex",
        number=202,
        arguments=("0x7f10", "0x189", "0x0", "0x0", "0x0", "0xffffffff"),
        stack_pointer=0x7FFC,
        program_counter=0x7F11,
    )
    assert procfs.parse_syscall(b"98 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0\n", "aarch64").name == "futex"
    assert procfs.parse_syscall(b"9999 0x0\n", "x86_64").name == "9999"
    assert procfs.parse_syscall(b"1 0x0\n", "riscv64").name == "1"
    running = procfs.Syscall(name="running", number=-1, arguments=())
    assert procfs.parse_syscall(b"running\n", "x86_64") == running
    fault = replace(running, stack_pointer=0x7FFC, program_counter=0x7F10)
    assert procfs.parse_syscall(b"-1 0x7ffc 0x7f10\n", "x86_64") == fault
    with pytest.raises(procfs.UnreadableError):
        procfs.parse_syscall(b"", "x86_64")


def test_kernel_stack() -> None:
    data = b"[<0>] futex_wait_queue+0x6f/0x110\n[<ffffffff810>] do_futex+0x1/0x2 [mod]\nnonsense\n"
    assert procfs.parse_kernel_stack(data) == ("futex_wait_queue+0x6f/0x110", "do_futex+0x1/0x2 [mod]")
    assert procfs.parse_kernel_stack(b"") == ()


@given(st.binary(max_size=400))
def test_no_content_breaks_a_parser_or_gets_through_unescaped(data: bytes) -> None:
    for parse in (
        procfs.parse_stat,
        procfs.parse_status,
        lambda each: procfs.parse_syscall(each, "x86_64"),
        procfs.parse_kernel_stack,
        parse_cgroup,
    ):
        try:
            result = parse(data)
        except procfs.UnreadableError:
            continue
        for field in ("comm", "state", "path", "unit", "name"):
            assert getattr(result, field, "").isprintable()
        if isinstance(result, tuple):
            assert all(line.isprintable() for line in result)


@given(st.binary(max_size=40))
def test_a_name_of_any_bytes_never_moves_a_field(comm: bytes) -> None:
    stat = procfs.parse_stat(b"7 (" + comm + b") " + REST)
    assert (stat.pid, stat.state, stat.start_ticks) == (7, "S", 5000)


HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(?!syscalls\b)(\w+)\s+(\d+)$"),
    "aarch64": ("/usr/include/asm-generic/unistd.h", r"#define __NR_(?!syscalls\b)(\w+)\s+(\d+)$"),
}


@pytest.mark.parametrize("machine", sorted(HEADERS))
def test_the_table_of_calls_is_that_of_the_kernels_header(machine: str) -> None:
    path, pattern = HEADERS[machine]
    if not os.path.exists(path):
        pytest.skip(f"no {path} here")
    names: dict[int, set[str]] = {}
    for name, number in re.findall(pattern, Path(path).read_text(), re.MULTILINE):
        names.setdefault(int(number), set()).add(name)
    # The header also has calls that no kernel of today has, and an older one lacks the newest.
    both = names.keys() & SYSCALL_NAMES[machine].keys()
    assert len(both) > 250
    assert [number for number in both if SYSCALL_NAMES[machine][number] not in names[number]] == []


def test_readers_on_this_process() -> None:
    directory = Host().proc(os.getpid())
    stat = procfs.stat(directory)
    assert (stat.pid, stat.parent_pid, stat.state) == (os.getpid(), os.getppid(), "R")
    assert procfs.status(directory).uid == os.getuid()
    assert os.getpid() in procfs.tids(directory)
    assert os.getpid() in procfs.pids(Host().proc())
    assert procfs.exe(directory) == os.readlink("/proc/self/exe")
    assert procfs.network_namespace(directory) == os.stat("/proc/self/ns/net").st_ino
    assert procfs.descriptor_count(directory) >= 3
    assert procfs.descriptor_limit(directory) in {float(os.sysconf("SC_OPEN_MAX")), None}
    assert procfs.io(directory).read_characters > 0
    assert procfs.cgroup(directory) == Path("/proc/self/cgroup").read_bytes()


def test_a_vanished_process_is_a_normal_result(tmp_path: Path) -> None:
    for read in (
        procfs.stat, procfs.status, procfs.wchan, procfs.kernel_stack, procfs.exe, procfs.network_namespace,
        procfs.descriptor_count, procfs.descriptor_limit, procfs.io, procfs.cgroup, procfs.tids,
    ):  # fmt: skip
        with pytest.raises(procfs.GoneError, match="No such file or directory"):
            read(str(tmp_path / "4711"))


def test_what_is_denied_says_what_to_grant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, _flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(procfs.DeniedError, match=r"reading .*/stack: Permission denied") as caught:
        procfs.kernel_stack(str(tmp_path))
    assert caught.value.hint == "kernel stacks need CAP_SYS_ADMIN"
    with pytest.raises(procfs.DeniedError) as caught:
        procfs.stat(str(tmp_path))
    assert caught.value.hint == "run as root or grant CAP_SYS_PTRACE"


@pytest.mark.parametrize(
    ("lines", "path", "unit", "container"),
    [
        ("0::/", "/", "", ""),
        ("0::/system.slice/sglang.service", "/system.slice/sglang.service", "sglang.service", ""),
        ("0::/system.slice/a.service/workers", "/system.slice/a.service/workers", "a.service", ""),
        (f"0::/system.slice/docker-{ID}.scope", f"/system.slice/docker-{ID}.scope", "", ID),
        (f"0::/docker/{ID}", f"/docker/{ID}", "", ID),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", None, "", ID),
        (f"0::/kubepods.slice/kubepods-burstable.slice/x/crio-{ID}.scope", None, "", ID),
        (f"0::/kubepods/burstable/podaaaa-bbbb/{ID}", None, "", ID),
        (f"0::/system.slice/containerd.service/kubepods-besteffort-pod1.slice:cri-containerd:{ID}", None,
         "containerd.service", ID),
        (f"0::/machine.slice/libpod-{ID}.scope/container", None, "", ID),
        (f"0::/machine.slice/libpod-conmon-{ID}.scope", None, "", ""),
        (f"0::/kubepods.slice/crio-conmon-{ID}.scope", None, "", ""),
        ("0::/ecs/0123456789abcdef0123456789abcdef/0123456789abcdef0123456789abcdef-12345678", None, "",
         "0123456789abcdef0123456789abcdef-12345678"),
        ("0::/user.slice/user-0.slice/session-4.scope", None, "session-4.scope", ""),
        (f"12:cpu,cpuacct:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/", f"/docker/{ID}", "", ID),
        ("4:memory:/m\n3:cpu,cpuacct:/c\n1:name=systemd:/system.slice/r.service", "/c", "r.service", ""),
        ("garbage\n::\n5:x\n0::relative", "", "", ""),
        ("0::/a\x1b[31m.service", "/a\\x1b[31m.service", "a\\x1b[31m.service", ""),
        ("", "", "", ""),
    ],
)  # fmt: skip
def test_cgroup(lines: str, path: str | None, unit: str, container: str) -> None:
    cgroup = parse_cgroup(lines.encode())
    assert (cgroup.unit, cgroup.container) == (unit, container)
    assert path is None or cgroup.path == path
