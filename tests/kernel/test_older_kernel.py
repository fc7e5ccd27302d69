"""The recorder's programs under the kernel of Debian 12, 6.1, booted for this."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support import guest
from tests.support.children import PROGRAMS

pytestmark = [pytest.mark.needs("root", "kernel", "qemu"), pytest.mark.timeout(600)]


def test_the_ledger_loads_and_sees_a_request_and_stacks_can_be_read(tmp_path: Path) -> None:
    kernel = guest.debian_kernel(tmp_path)
    said = guest.run_in(kernel, [sys.executable, str(PROGRAMS / "recorder_smoke.py"), "SOCKETS", "URING"], tmp_path)
    told = next((line for line in said.splitlines() if line.startswith("{")), None)
    assert told is not None, said[-4000:]
    found = json.loads(told)
    assert found["kernel"].startswith("6.1.")
    assert found["rung"] == 0
    assert found["requests"] == [["POST", "/v1/chat/completions", "smoke-1"]]
    assert found["others_loaded"] == ["SOCKETS", "URING"]
    assert found["threads_read"] >= 1
