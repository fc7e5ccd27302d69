from __future__ import annotations

import importlib.metadata
import sys
import sysconfig
from pathlib import Path

import pytest

from freezeframe.agentd.capabilities import Capability, State, copies, probe, store
from freezeframe.agentd.config import StoreLimits
from freezeframe.agentd.errors import StoreFailedError
from freezeframe.agentd.store import Condition, Copying

FULL = (1 << 41) - 1


@pytest.fixture(autouse=True)
def _without_bcc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the recorder have loaded the distribution's into this process."""
    monkeypatch.delitem(sys.modules, "bcc", raising=False)


WITHOUT_ADMIN = FULL & ~(1 << 21)


def host(
    root: Path, *, effective: int = FULL, lockdown: str = "none [integrity] confidentiality", tracing: bool = True
) -> str:
    for folder in ("proc/self", "proc/sys/kernel", "sys/kernel/security", "sys/kernel/btf"):
        (root / folder).mkdir(parents=True)
    (root / "proc/self/status").write_text(f"Name:\tx\nCapPrm:\t0\nCapEff:\t{effective:016x}\n")
    (root / "proc/sys/kernel/osrelease").write_text("6.18.0-test\n")
    (root / "sys/kernel/security/lockdown").write_text(lockdown + "\n")
    (root / "sys/kernel/btf/vmlinux").write_text("")
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/journalctl").touch(0o755)
    (root / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (root / "usr/lib/x86_64-linux-gnu/libdw.so.1").touch()
    if tracing:
        (root / "sys/kernel/tracing/events").mkdir(parents=True)
    return str(root)


def missing(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def by_name(found: tuple[Capability, ...]) -> dict[str, Capability]:
    return {each.name: each for each in found}


def test_a_host_that_has_everything(tmp_path: Path) -> None:
    (tmp_path / "dist/bcc").mkdir(parents=True)
    (tmp_path / "dist/bcc/__init__.py").write_text("")
    (tmp_path / "dist/bcc/libbcc.py").write_text("")
    found = probe(root=host(tmp_path / "host"), euid=0, bcc_paths=[str(tmp_path / "dist")])
    assert [each.name for each in found] == [
        "root", "CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_SYSLOG", "CAP_SYS_ADMIN",
        "py-spy", "kernel", "tracefs", "BTF", "bcc", "native stacks (libdw)", "journal", "connection tracking",
        "yama", "lockdown",
    ]  # fmt: skip
    assert {each.state for each in found} == {State.PRESENT}
    assert {each.hint for each in found} == {""}
    named = by_name(found)
    assert named["kernel"].detail == "6.18.0-test"
    assert named["lockdown"].detail == "integrity"
    assert named["bcc"].detail == str(tmp_path / "dist/bcc")
    assert named["py-spy"].detail.startswith(importlib.metadata.version("py-spy"))


def test_tracefs_that_is_not_mounted_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/tracing").mkdir(parents=True)
    tracefs = by_name(probe(root=str(tmp_path), euid=0))["tracefs"]
    assert tracefs.state is State.LIMITED
    assert tracefs.detail.startswith("not mounted: the recorder mounts it for itself")


def test_a_user_without_anything(tmp_path: Path) -> None:
    found = by_name(probe(root=str(tmp_path), euid=1000, version=missing, bcc_paths=[]))
    for name, state in (
        ("root", State.LIMITED),
        ("CAP_BPF", State.LIMITED),
        ("py-spy", State.ABSENT),
        ("tracefs", State.ABSENT),
        ("BTF", State.ABSENT),
        ("bcc", State.ABSENT),
        ("journal", State.LIMITED),
    ):
        assert found[name].state == state, name
    assert found["py-spy"].hint == "pip install 'freezeframe[agent]'"
    assert found["bcc"].hint == "apt install python3-bpfcc, or: dnf install python3-bcc"


DROP_INS = "/etc/systemd/system/freezeframe-agentd.service.d"
RESTART = "sudo systemctl daemon-reload && sudo systemctl restart freezeframe-agentd"
GRANTS = {
    name: f"printf '[Service]\\nCapabilityBoundingSet={name}\\nAmbientCapabilities={name}\\n' | "
    f"sudo install -D -m 644 /dev/stdin {DROP_INS}/{name.lower()}.conf && {RESTART}"
    for name in ("CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_SYSLOG")
} | {
    "CAP_SYS_ADMIN": "sudo install -D -m 644 "
    f"{sysconfig.get_path('data')}/share/freezeframe/systemd/kernel-stacks.conf "
    f"{DROP_INS}/kernel-stacks.conf && {RESTART}"
}


@pytest.mark.parametrize(
    ("effective", "absent"),
    [
        (WITHOUT_ADMIN, {"CAP_SYS_ADMIN": State.LIMITED}),
        (FULL & ~(1 << 19), {"CAP_SYS_PTRACE": State.ABSENT}),
        (FULL & ~(1 << 39) & ~(1 << 38), {"CAP_BPF": State.ABSENT, "CAP_PERFMON": State.ABSENT}),
        (FULL & ~(1 << 2) & ~(1 << 34), {"CAP_DAC_READ_SEARCH": State.ABSENT, "CAP_SYSLOG": State.ABSENT}),
    ],
)
def test_each_bit_counts(tmp_path: Path, effective: int, absent: dict[str, State]) -> None:
    found = probe(root=host(tmp_path, effective=effective), euid=1000)
    bits = [each for each in found if each.name.startswith("CAP_")]
    assert {each.name: each.state for each in bits if each.state is not State.PRESENT} == absent
    for each in bits:
        if each.name in absent:
            assert each.hint == GRANTS[each.name]


def test_another_user_with_the_five_capabilities_lacks_nothing(tmp_path: Path) -> None:
    found = by_name(probe(root=host(tmp_path, effective=WITHOUT_ADMIN), euid=998))
    assert found["root"].state is State.PRESENT
    assert found["root"].detail == "runs as uid 998, with the capabilities that it needs"
    assert by_name(probe(root=str(tmp_path), euid=0))["root"].detail == "runs as root"


@pytest.mark.parametrize(
    ("scope", "detail"), [("0\n", "ptrace_scope 0"), ("2\n", "ptrace_scope 2"), (None, "not in use")]
)
def test_yama_that_leaves_it_to_the_capability(tmp_path: Path, scope: str | None, detail: str) -> None:
    root = host(tmp_path)
    if scope is not None:
        (tmp_path / "proc/sys/kernel/yama").mkdir()
        (tmp_path / "proc/sys/kernel/yama/ptrace_scope").write_text(scope)
    yama = by_name(probe(root=root))["yama"]
    assert (yama.state, yama.detail, yama.hint) == (State.PRESENT, detail, "")


def test_yama_that_lets_nobody_read_a_process(tmp_path: Path) -> None:
    root = host(tmp_path)
    (tmp_path / "proc/sys/kernel/yama").mkdir()
    (tmp_path / "proc/sys/kernel/yama/ptrace_scope").write_text("3\n")
    yama = by_name(probe(root=root))["yama"]
    assert yama.state is State.ABSENT
    assert yama.hint.startswith("set kernel.yama.ptrace_scope = 2 in /etc/sysctl.d")


def test_the_unrelated_bcc_is_told_from_the_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pypi/bcc").mkdir(parents=True)
    (tmp_path / "pypi/bcc/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "pypi"))
    found = by_name(probe(root=host(tmp_path / "host"), euid=0, bcc_paths=[]))
    assert found["bcc"].detail == "the installed package bcc is the unrelated one from PyPI"


def test_lockdown_that_takes_reads_away(tmp_path: Path) -> None:
    found = by_name(probe(root=host(tmp_path, lockdown="none integrity [confidentiality]"), euid=0))
    assert found["lockdown"].state == State.LIMITED


def test_a_kernel_that_does_not_tell_what_it_translates(tmp_path: Path) -> None:
    root = host(tmp_path)
    (tmp_path / "proc/sys/net/netfilter").mkdir(parents=True)
    (tmp_path / "proc/sys/net/netfilter/nf_conntrack_max").touch()
    assert by_name(probe(root=root))["connection tracking"].state == State.LIMITED
    (tmp_path / "proc/self/net").mkdir()
    (tmp_path / "proc/self/net/nf_conntrack").touch()
    assert by_name(probe(root=root))["connection tracking"].state == State.PRESENT


def test_this_host_can_be_looked_at() -> None:
    assert len(probe()) == 17


def condition(**more: object) -> Condition:
    whole = {"snapshots": 12, "pinned": 1, "size_bytes": 34 << 20, "free_bytes": 1 << 40, "damaged": (), "unchecked": 0}
    return Condition(**{**whole, **more})


WHOLE = "12 of 200 snapshots, 34 of 2048 MiB, 1 pinned"


@pytest.mark.parametrize(
    ("found", "state", "detail", "hint"),
    [
        (condition(), State.PRESENT, WHOLE, ""),
        (condition(unchecked=3), State.PRESENT, f"{WHOLE}, 3 not checked yet", ""),
        (
            condition(damaged=(("a", "bytes were changed in sockets"), ("b", "x"))), State.LIMITED,
            f"damaged: a: bytes were changed in sockets; 1 more; {WHOLE}",
            "freezeframe get a saves what is whole; freezeframe rm a",
        ),
        (
            condition(free_bytes=4096), State.LIMITED,
            f"4 KiB free on its disk: the next snapshot may not be kept; {WHOLE}",
            "free space on the disk of the state directory",
        ),
        (StoreFailedError("opening the store /s: Not a directory", "move it"), State.ABSENT,
         "opening the store /s: Not a directory", "move it"),
    ],
)  # fmt: skip
def test_the_store(found: Condition | StoreFailedError, state: State, detail: str, hint: str) -> None:
    assert store(found, StoreLimits()) == Capability(name="store", state=state, detail=detail, hint=hint)


def test_copies_are_told_as_they_fare() -> None:
    fine = copies(Copying(copied=3, waiting=0, failure=None), "s3://b")
    assert (fine.name, fine.state, fine.hint) == ("copy", State.PRESENT, "")
    assert fine.detail == "0 to copy to s3://b, 3 copied since the agent began"
    failed = copies(Copying(copied=3, waiting=2, failure=StoreFailedError("no", "mend")), "s3://b")
    assert (failed.state, failed.hint) == (State.LIMITED, "mend")
    assert failed.detail == "no; 2 to copy to s3://b, 3 copied since the agent began"
    without = copies(StoreFailedError("obstore is not installed", "pip"), "s3://b")
    assert (without.state, without.detail, without.hint) == (State.ABSENT, "obstore is not installed", "pip")
