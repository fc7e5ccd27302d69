"""Certificates: what is written, with which modes, and what is never replaced unasked."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import hypothesis
import pytest
from click.testing import CliRunner, Result
from hypothesis import example, given
from hypothesis import strategies as st

from freezeframe.agentd import certs, tls
from freezeframe.agentd.config import Config, Remote
from freezeframe.agentd.daemon import check_remote, command
from freezeframe.agentd.errors import CertificateError, ConfigError
from freezeframe.agentd.roles import Role
from tests.support.command import SEPARATE


def run(*arguments: str) -> Result:
    return CliRunner(**SEPARATE).invoke(command, ["certs", *arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert run("init", "--dir", str(tmp_path / "tls")).exit_code == 0
    return tmp_path / "tls"


def modes(folder: Path) -> dict[str, int]:
    return {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in os.scandir(folder) if entry.is_file()}


def text_of(certificate: Path) -> str:
    shown = subprocess.run(
        ["openssl", "x509", "-in", certificate, "-noout", "-text"], capture_output=True, text=True, check=True
    )
    return shown.stdout


def test_what_is_issued_and_with_which_modes(folder: Path) -> None:
    done = run("issue", "gpu-07", "10.0.0.7", "--dir", str(folder), "--days", "90")
    assert (done.exit_code, done.stdout.splitlines()) == (
        0, [f"{folder}/gpu-07/{name}" for name in ("agent.key", "agent.crt", "ca.crt")]
    )  # fmt: skip
    assert run("issue", "alice", "--role", "capture", "--dir", str(folder)).exit_code == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert modes(folder) == {"ca.crt": 0o644, "ca.key": 0o600}
    assert modes(folder / "gpu-07") == {"agent.crt": 0o644, "agent.key": 0o600, "ca.crt": 0o644}
    assert modes(folder / "alice") == {"client.crt": 0o644, "client.key": 0o600, "ca.crt": 0o644}
    agent, client = text_of(folder / "gpu-07" / "agent.crt"), text_of(folder / "alice" / "client.crt")
    assert "DNS:gpu-07, IP Address:10.0.0.7, DNS:localhost, IP Address:127.0.0.1" in agent
    assert "TLS Web Server Authentication" in agent
    assert "TLS Web Client Authentication" not in agent
    assert "URI:freezeframe://role/capture" in client
    assert "TLS Web Client Authentication" in client
    assert "CA:FALSE" in client
    for certificate in (folder / "gpu-07" / "agent.crt", folder / "alice" / "client.crt"):
        subprocess.run(["openssl", "verify", "-x509_strict", "-CAfile", folder / "ca.crt", certificate], check=True,
                       capture_output=True)  # fmt: skip


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_hold_whatever_the_umask_is(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert run("init", "--dir", str(tmp_path / "tls")).exit_code == 0
    finally:
        os.umask(before)
    assert modes(tmp_path / "tls") == {"ca.crt": 0o644, "ca.key": 0o600}


def test_nothing_is_replaced_unless_asked_for(folder: Path) -> None:
    before = {name: (folder / name).read_bytes() for name in ("ca.crt", "ca.key")}
    done = run("init", "--dir", str(folder))
    assert (done.exit_code, done.stderr.splitlines()[0]) == (
        1, f"freezeframe-agentd: {folder}/ca.key is there already"
    )  # fmt: skip
    assert {name: (folder / name).read_bytes() for name in before} == before
    # A link counts as there, and is not followed.
    (folder / "victim").write_text("mine")
    (folder / "alice").mkdir()
    (folder / "alice" / "client.key").symlink_to(folder / "victim")
    assert run("issue", "alice", "--role", "view", "--dir", str(folder)).exit_code == 1
    assert run("issue", "alice", "--role", "view", "--dir", str(folder), "--force").exit_code == 0
    assert (folder / "victim").read_text() == "mine"
    assert not (folder / "alice" / "client.key").is_symlink()
    assert run("init", "--dir", str(folder), "--force").exit_code == 0
    assert (folder / "ca.key").read_bytes() != before["ca.key"]


def test_the_certificate_of_another_authority_stays(tmp_path: Path, folder: Path) -> None:
    other = tmp_path / "other"
    run("init", "--dir", str(other))
    before = {name: (other / name).read_bytes() for name in ("ca.crt", "ca.key")}
    done = run("issue", "gpu-07", "--dir", str(folder), "--out", str(other))
    assert (done.exit_code, done.stderr.splitlines()) == (1, [
        f"freezeframe-agentd: {other}/ca.crt is there already, of another authority",
        "freezeframe-agentd: name another directory, or replace it with --force",
    ])  # fmt: skip
    assert {name: (other / name).read_bytes() for name in os.listdir(other)} == before
    # Of one authority an agent and a client may share a directory.
    assert run("issue", "gpu-07", "--dir", str(folder)).exit_code == 0
    done = run("issue", "alice", "--role", "view", "--dir", str(folder), "--out", str(folder / "gpu-07"))
    assert (done.exit_code, sorted(os.listdir(folder / "gpu-07"))) == (
        0, ["agent.crt", "agent.key", "ca.crt", "client.crt", "client.key"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("al ice", "--role", "view"), "'al ice' is no name for a certificate"),
        (("-", "--role", "view"), "'-' is no name for a certificate"),
        (("gpu_07/..",), "'gpu_07/..' is neither a host name nor an address"),
        (("a", "b", "--role", "view"), "a client has one NAME"),
    ],
)
def test_names_that_are_none(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run("issue", "--dir", str(folder), "--", *arguments) if arguments[0] == "-" else run(
        "issue", *arguments, "--dir", str(folder)
    )  # fmt: skip
    assert done.exit_code != 0
    if arguments[0] != "-":
        assert said in done.stderr


def test_an_authority_that_is_none(tmp_path: Path, folder: Path) -> None:
    done = run("issue", "gpu-07", "--dir", str(tmp_path / "nowhere"))
    assert (done.exit_code, done.stderr.splitlines()) == (1, [
        f"freezeframe-agentd: reading the authority's {tmp_path}/nowhere/ca.crt: No such file or directory",
        "freezeframe-agentd: make one: freezeframe-agentd certs init",
    ])  # fmt: skip
    run("init", "--dir", str(tmp_path / "other"))
    (folder / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    done = run("issue", "gpu-07", "--dir", str(folder))
    assert f"{folder}/ca.key is not the key of {folder}/ca.crt" in done.stderr
    (folder / "ca.key").write_text("nonsense")
    assert "it is not what certs init makes" in run("issue", "gpu-07", "--dir", str(folder)).stderr


def test_an_authority_out_of_its_time_issues_nothing(folder: Path) -> None:
    now = datetime.now(tz=timezone.utc)
    for begins in (now - timedelta(days=40), now + timedelta(days=2)):
        certs.init(str(folder), days=30, force=True, begins=begins)
        done = run("issue", "gpu-07", "--dir", str(folder))
        assert (done.exit_code, done.stdout) == (1, "")
        sentence, hint = done.stderr.splitlines()
        begin = begins - timedelta(hours=1)
        assert sentence.startswith(f"freezeframe-agentd: {folder}/ca.crt is valid from {begin:%Y-%m-%d %H:%M} to ")
        assert sentence.endswith("what it signs is good for nothing")
        assert hint.startswith("freezeframe-agentd: set this host's clock")
        assert not (folder / "gpu-07").exists()


def test_host_names_are_longer_than_a_common_name_may_be(folder: Path) -> None:
    name = f"engine-0.{'a' * 63}.serving.svc.cluster.local"
    assert run("issue", name, "--dir", str(folder)).exit_code == 0
    shown = text_of(folder / name / "agent.crt")
    assert f"DNS:{name}, DNS:localhost" in shown
    assert f"CN = {name[:64]}\n" in shown.replace("CN=", "CN = ")
    assert run("issue", "a" * 254, "--dir", str(folder)).exit_code == 1


@pytest.mark.needs("root")
def test_a_full_disk_costs_no_key_and_leaves_no_half(tmp_path: Path) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20k", "tmpfs", str(mount)], check=True)
    try:
        folder = mount / "tls"
        assert run("init", "--dir", str(folder)).exit_code == 0
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        # A page is left: for the key, not for what belongs to it.
        (mount / "fill").write_bytes(b"x" * 8192)
        for arguments in (("init", "--force"), ("issue", "alice", "--role", "view"), ("issue", "gpu-07")):
            done = run(*arguments, "--dir", str(folder))
            assert (done.exit_code, done.stdout) == (1, "")
            assert done.stderr.splitlines()[0].endswith(".crt: No space left on device")
        assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        (mount / "fill").unlink()
        assert run("issue", "gpu-07", "--dir", str(folder)).exit_code == 0
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.parametrize("arguments", [("certs", "issue", "gpu-07", "--dir", "tls"), ("--check-config",)])
def test_what_cannot_be_printed_is_said(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    run("init", "--dir", str(tmp_path / "tls"))
    (tmp_path / "empty.toml").write_text("")
    program = [sys.executable, "-m", "freezeframe.agentd", "--config", "empty.toml", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(program, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1, "freezeframe-agentd: writing to standard output: No space left on device\n"
    )  # fmt: skip


def settings(folder: Path, **changes: str) -> Remote:
    files = {"certificate": "agent.crt", "key": "agent.key", "client_ca": "ca.crt"}
    return Remote(**{"listen": "127.0.0.1:0", **{k: str(folder / name) for k, name in files.items()}, **changes})


def test_a_listener_needs_all_of_its_settings(folder: Path) -> None:
    run("issue", "gpu-07", "--dir", str(folder))
    whole = settings(folder / "gpu-07")
    check_remote(whole, insecure=False)
    check_remote(Config().remote, insecure=False)
    for key in ("listen", "certificate", "key", "client_ca"):
        with pytest.raises(ConfigError) as caught:
            check_remote(settings(folder / "gpu-07", **{key: ""}), insecure=False)
        assert caught.value.detail.startswith("half a TLS setup: ")
        assert caught.value.detail.endswith(f" is set, and remote.{key} is not")


def test_files_that_do_not_do_are_named_before_anything_starts(folder: Path) -> None:
    run("issue", "gpu-07", "--dir", str(folder))
    run("issue", "gpu-08", "--dir", str(folder))
    files = folder / "gpu-07"
    cases = (
        ({"key": str(folder / "gpu-08" / "agent.key")}, "key values mismatch"),
        ({"certificate": str(folder / "none.crt")}, f"reading {folder}/none.crt for TLS: No such file or directory"),
        ({"client_ca": str(files / "agent.key")}, "agent.key for TLS: "),
        ({"certificate": str(files / "agent.key")}, "agent.key for TLS: it is no certificate in PEM"),
    )
    for changes, said in cases:
        with pytest.raises(ConfigError) as caught:
            check_remote(settings(files, **changes), insecure=False)
        assert said in caught.value.detail
    (files / "agent.key").chmod(0o644)
    with pytest.raises(ConfigError) as caught:
        check_remote(settings(files), insecure=False)
    assert (caught.value.detail, caught.value.hint) == (
        f"others may read {files}/agent.key, the agent's private key", f"chmod 600 {files}/agent.key"
    )  # fmt: skip


@pytest.mark.parametrize("listen", ["gpu-07:7443", "7443", "0.0.0.0", "0.0.0.0:x", "0.0.0.0:70000", ":7443"])
def test_an_address_that_is_none(folder: Path, listen: str) -> None:
    run("issue", "gpu-07", "--dir", str(folder))
    with pytest.raises(ConfigError, match=r"remote\.listen is "):
        check_remote(settings(folder / "gpu-07", listen=listen), insecure=False)


def test_without_tls_a_loopback_address_alone(folder: Path) -> None:
    for listen in ("127.0.0.1:7443", "127.9.9.9:0", "[::1]:7443"):
        check_remote(Remote(listen=listen), insecure=True)
    for listen in ("0.0.0.0:7443", "[::]:7443", "10.0.0.7:7443"):
        with pytest.raises(ConfigError, match="without TLS only a loopback address"):
            check_remote(Remote(listen=listen), insecure=True)
    with pytest.raises(ConfigError, match="nothing would listen"):
        check_remote(Remote(), insecure=True)
    with pytest.raises(ConfigError, match="which of them"):
        check_remote(settings(folder), insecure=True)


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("issued")
    certs.init(str(folder), days=10, force=False)
    certs.issue_agent(str(folder), ["gpu-07"], out=str(folder / "gpu-07"), days=5, force=False)
    return folder


# Of a serial number below zero.
@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "gpu-07/agent.crt", "gpu-07/agent.key", "gpu-07/ca.crt"])
@given(place=st.integers(0, 2000), bit=st.integers(0, 7))
# The version of a certificate.
@example(place=12, bit=4)
@hypothesis.settings(max_examples=200, deadline=None)
def test_one_bit_of_a_certificate_or_key_is_wrong(issued: Path, name: str, place: int, bit: int) -> None:
    """It is said which file it is, or does not matter to who reads it."""
    path = issued / name
    whole = path.read_bytes()
    first, *body, last = whole.splitlines()
    der = bytearray(base64.b64decode(b"".join(body)))
    der[place % len(der)] ^= 1 << bit
    path.write_bytes(b"\n".join((first, base64.b64encode(der), last)) + b"\n")
    refused: CertificateError | ConfigError | None = None
    try:
        if path.parent == issued:
            certs.issue_client(str(issued), "alice", Role.VIEW, out=str(issued / "alice"), days=1, force=True)
        else:
            tls.load(settings(path.parent))
    except (CertificateError, ConfigError) as error:
        refused = error
    finally:
        path.write_bytes(whole)
    assert refused is None or (str(path) in refused.detail and refused.hint)
