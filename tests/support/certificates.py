"""Certificates as `freezeframe-agentd certs` makes them, good ones and others."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from freezeframe.agentd import certs
from freezeframe.agentd.config import Remote
from freezeframe.agentd.roles import Role


@dataclass(frozen=True, kw_only=True)
class Authority:
    """One authority, with what it issues in directories below its own."""

    folder: Path

    def agent(self, out: Path | None = None, *, begins: datetime | None = None, force: bool = False) -> Path:
        return self._out(out or self.folder / "agent", lambda path: certs.issue_agent(
            str(self.folder), ["gpu-07.test", "127.0.0.1"], out=path, days=30, force=force, begins=begins
        ))  # fmt: skip

    def client(self, role: Role, name: str = "alice", *, begins: datetime | None = None) -> Path:
        return self._out(self.folder / f"{name}-{role.label}", lambda path: certs.issue_client(
            str(self.folder), name, role, out=path, days=30, force=True, begins=begins
        ))  # fmt: skip

    @staticmethod
    def _out(path: Path, issue: object) -> Path:
        issue(str(path))  # type: ignore[operator]
        return path


def authority(folder: Path) -> Authority:
    certs.init(str(folder), days=30, force=False)
    return Authority(folder=folder)


def remote(agent: Path, **options: object) -> Remote:
    """A listener on a free port, with the files of an agent."""
    return Remote(
        listen="127.0.0.1:0", certificate=str(agent / "agent.crt"), key=str(agent / "agent.key"),
        client_ca=str(agent / "ca.crt"), **options,  # type: ignore[arg-type]
    )  # fmt: skip


LONG_AGO = datetime.now(tz=timezone.utc) - timedelta(days=60)
