"""Roles that the configuration gives to processes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from freezeframe.agentd.config import RoleOverride
from freezeframe.judge.model import Process


def overrides(rules: Sequence[RoleOverride], processes: Sequence[Process]) -> dict[int, Process.Role]:
    """Pid -> role for every process that matches all that a rule gives; the first rule that matches wins."""
    found: dict[int, Process.Role] = {}
    for process in processes:
        for rule in rules:
            if _matches(rule, process):
                found[process.pid] = Process.Role[rule.role.upper().replace("-", "_")]
                break
    return found


def _matches(rule: RoleOverride, process: Process) -> bool:
    return (
        (not rule.title or process.title.startswith(rule.title))
        and (not rule.exe or process.exe == rule.exe)
        and (not rule.unit or process.unit == rule.unit)
        and (not rule.port or rule.port in process.listening_ports)
    )
