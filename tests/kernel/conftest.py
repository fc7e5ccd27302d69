from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from freezeframe.agentd.bpf import loader, programs
from freezeframe.agentd.recorder.ledger import Ledger


@pytest.fixture(scope="session")
def private_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recorder")
    directory.chmod(0o700)
    return directory


@pytest.fixture(scope="module")
def ledger(private_directory: Path) -> Iterator[Ledger]:
    ledger = Ledger(loader.load(programs.LEDGER, str(private_directory)))
    try:
        yield ledger
    finally:
        ledger.close()
