"""The four traps of three source roots under one namespace, and the menus that are written out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOTS = ("agentd", "client", "proto")


@pytest.mark.parametrize("root", ROOTS)
def test_no_init_file_hides_the_other_roots(root: str) -> None:
    assert not (ROOT / root / "__init__.py").exists()
    assert not (ROOT / root / "freezeframe" / "__init__.py").exists()


def test_all_roots_import_from_anywhere(tmp_path: Path) -> None:
    code = "import freezeframe.agentd, freezeframe.judge, freezeframe.client, freezeframe.v1; print('ok')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("ok\n", "")


def test_each_package_says_that_it_is_typed() -> None:
    for package in ("agentd/freezeframe/agentd", "agentd/freezeframe/judge", "client/freezeframe/client"):
        assert (ROOT / package / "py.typed").exists()
    assert (ROOT / "proto/freezeframe/v1/py.typed").exists()


def test_every_file_of_a_room_imports() -> None:
    names = [
        str(path.relative_to(ROOT / root).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for root in ("agentd", "client")
        for path in sorted((ROOT / root / "freezeframe").rglob("*.py"))
        if path.name != "__main__.py"
    ]
    code = f"import importlib\nfor name in {names!r}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 0


def test_no_file_is_called_utils() -> None:
    found = [path for root in (*ROOTS, "tests") for path in (ROOT / root).rglob("*util*.py")]
    assert found == []


def test_bcc_of_pypi_is_never_asked_for() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert '"bcc' not in text
