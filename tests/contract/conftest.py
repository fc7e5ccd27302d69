"""An agent that answers what it was told, and a client that nothing of this machine has a say in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from freezeframe.client import hosts
from tests.support.canned_agent import Script, canned_agent
from tests.support.story import story_bytes


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No daemon, configuration or name of this machine has a say."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hosts, "SYSTEM_DIRECTORY", str(tmp_path / "nowhere"))
    monkeypatch.setattr("freezeframe.client.config.SYSTEM_FILE", str(tmp_path / "nowhere.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("FREEZEFRAME_HOST", "XDG_RUNTIME_DIR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def script() -> Script:
    return Script(data=story_bytes())


@pytest.fixture
def address(script: Script) -> Iterator[str]:
    with canned_agent(script) as path:
        yield f"unix:{path}"
