from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "drop_privileges.py"


@pytest.mark.needs("root")
def test_nothing_is_left_and_nothing_comes_back() -> None:
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, check=True)
    none = "0" * 16
    nothing = {"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none, "NoNewPrivs": "1"}
    assert json.loads(done.stdout) == [nothing, nothing]
