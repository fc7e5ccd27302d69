"""Writes agentd/freezeframe/agentd/host/cpython/tables.py: the offsets of each CPython version that is given.

    python packaging/cpython/make_tables.py [--check] PYTHON...

PYTHON is an interpreter that has its headers (Include/internal too, as every development package has) and can compile
nothing itself: gcc does. Versions that are not given keep the table that they have. With --check nothing is written
and the exit status says whether the tables of the versions given are as they stand in the file. Two interpreters of
one minor version must agree: what a patch release moves is no offset that a table may hold.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TABLES = HERE.parents[1] / "agentd/freezeframe/agentd/host/cpython/tables.py"
HEAD = '''"""Offsets of CPython's structs by version, in bytes. Written by packaging/cpython/make_tables.py.

x86-64, builds with a lock. "told:KEY" is the place of KEY's own value in `_Py_DebugOffsets`.
"""

from __future__ import annotations

TABLES: dict[str, dict[str, int]] = {
'''


def measure(python: str) -> tuple[str, dict[str, int]]:
    """Offsets of one interpreter: ("3.11.7", {key: offset})."""
    ask = "import sysconfig; [print(sysconfig.get_path(each)) for each in ('include', 'platinclude')]"
    said = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.split("\n")
    # Debian keeps pyconfig.h of each architecture apart, beside the other headers.
    own = Path(said[0])
    includes = [*said[:2], str(own.parent / "x86_64-linux-gnu" / own.name), str(own.parent)]
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/offsets"
        command = ["gcc", "-w", *(f"-I{path}" for path in includes), str(HERE / "offsets.c"), "-o", program]
        subprocess.run(command, check=True)
        offsets = json.loads(subprocess.run([program], capture_output=True, check=True).stdout)
    told = subprocess.run([python, str(HERE / "calibrate.py")], capture_output=True, text=True, check=False)
    if told.returncode != 0:
        raise SystemExit(f"{python}: {told.stderr}")
    found = json.loads(told.stdout.splitlines()[-1])
    version = found.pop("version")
    if offsets.pop("version") != version:
        raise SystemExit(f"{python} is {version}, and its headers are of another version")
    return version, dict(sorted({**offsets, **found}.items()))


def present() -> dict[str, dict[str, int]]:
    """Tables as they stand in the file."""
    if not TABLES.exists():
        return {}
    spec = importlib.util.spec_from_file_location("tables", TABLES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.TABLES)


def written(tables: dict[str, dict[str, int]]) -> str:
    """The file's text."""
    lines = [HEAD]
    for version in sorted(tables, key=lambda text: tuple(map(int, text.split(".")))):
        lines.append(f'    "{version}": {{\n')
        lines.extend(f'        "{key}": {value},\n' for key, value in tables[version].items())
        lines.append("    },\n")
    return "".join([*lines, "}\n"])


def main() -> int:
    """Run; 1 when --check finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("python", nargs="+")
    asked = parser.parse_args()
    old = present()
    new: dict[str, dict[str, int]] = {}
    for python in asked.python:
        version, table = measure(python)
        minor = ".".join(version.split(".")[:2])
        other = new.setdefault(minor, table)
        differing = sorted(key for key in {*other, *table} if other.get(key) != table.get(key))
        print(f"{version}: {len(table)} offsets{', not those of the other ' + minor if differing else ''}")
        # What a process tells itself may differ: it is read there, never from the table.
        if any(f"told:{key}" not in table for key in differing):
            raise SystemExit(f"{version} differs in {differing}")
    if asked.check:
        wrong = [version for version in new if old.get(version) != new[version]]
        print("not current: " + ", ".join(wrong) if wrong else "current")
        return bool(wrong)
    TABLES.write_text(written({**old, **new}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
