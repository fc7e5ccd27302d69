"""A real sshd on a free port of the loopback address or of another network namespace, with all that it needs.

It runs in a mount namespace in which /etc/passwd has one user more, and for root a shell that reads no .bashrc. Clients
get an `ssh` on their PATH that reads a configuration of ours: ssh takes a user's home from /etc/passwd, whatever HOME
says.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.network import Place

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", ""))
USER, UID = "walker", 45678
_START_S = 20.0

_SSHD_CONFIG = """
ListenAddress {address}
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
"""
_SSH_CONFIG = """
Host *
    Port {port}
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking yes
Host box behind
    HostName {address}
Host behind
    ProxyJump box
"""


@dataclass(frozen=True, kw_only=True)
class Sshd:
    port: int
    folder: Path
    process: subprocess.Popen[bytes]

    def environment(self) -> dict[str, str]:
        """For a client, whose ssh is to know this sshd."""
        return {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "TMPDIR": str(self.private)}

    @property
    def private(self) -> Path:
        """Where a client makes its private directories."""
        return self.folder / "tmp"

    def clients(self) -> list[str]:
        """Command lines of the ssh processes that use our configuration."""
        return [line for _, line in self._clients()]

    def client_pids(self) -> list[int]:
        """Their pids."""
        return [pid for pid, _ in self._clients()]

    def _clients(self) -> list[tuple[int, str]]:
        found = []
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if str(self.folder / "ssh_config") in line:
                    found.append((int(entry), line))
        return found


@contextlib.contextmanager
def running_sshd(folder: Path, *lines: str, place: Place | None = None) -> Iterator[Sshd]:
    """Serve until the block ends; `lines` go on top of the configuration of sshd. `place` is where it listens."""
    assert SSHD is not None
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    address = place.address if place is not None else "127.0.0.1"
    settings = {"address": address, "port": port, "folder": folder}
    (folder / "sshd_config").write_text("\n".join(lines) + _SSHD_CONFIG.format(**settings))
    (folder / "ssh_config").write_text(_SSH_CONFIG.format(**settings))
    (folder / "known_hosts").write_text(f"[{address}]:{port} {(folder / 'host_key.pub').read_text()}")
    users = re.sub(r"^(root:.*:).*$", r"\1/bin/sh", Path("/etc/passwd").read_text(), flags=re.MULTILINE)
    (folder / "passwd").write_text(users + f"{USER}:x:{UID}:{UID}::/:/bin/sh\n")
    (folder / "shadow").write_text(Path("/etc/shadow").read_text() + f"{USER}:*:19000:0:99999:7:::\n")
    (folder / "bin").mkdir()
    (folder / "tmp").mkdir()
    stand_in = folder / "bin" / "ssh"
    stand_in.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    stand_in.chmod(0o755)
    mounted = " && ".join(f"mount --bind {folder}/{name} /etc/{name}" for name in ("passwd", "shadow"))
    command = ["unshare", "--mount", "sh", "-c",
               f"mkdir -p /run/sshd && {mounted} && exec {SSHD} -D -e -f {folder}/sshd_config"]  # fmt: skip
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen(
            place.command(*command) if place is not None else command, stdin=subprocess.DEVNULL, stderr=log
        )
    try:
        deadline = time.monotonic() + _START_S
        while f"listening on {address} port {port}" not in (said := (folder / "sshd.log").read_text()):
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.02)
        yield Sshd(port=port, folder=folder, process=process)
    finally:
        process.terminate()
        process.wait(10)
