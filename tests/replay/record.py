"""Takes the snapshots of the corpus on the bed, by the daemon and the client as users run them.

Paths of this checkout and the host's name are replaced; everything else stands as it was captured.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from freezeframe.judge import file
from tests.bed.bed import Bed
from tests.bed.routers import ROUTERS
from tests.e2e.table import HEALTHY, TABLE
from tests.replay.cases import CORPUS, MANIFEST, read
from tests.support.command import freezeframe
from tests.support.daemon import running_daemon

_ROOT = Path(__file__).parents[2]
_HOST = "gpu-07"
_HEALTHY_TIMES = 2


def record(names: Sequence[str] = (), routers: Sequence[str] = tuple(ROUTERS)) -> None:
    """Take the cases of these wedges and states anew, or all; the manifest keeps the others."""
    entries = {entry["name"]: entry for entry in json.loads(MANIFEST.read_text())} if MANIFEST.exists() else {}
    for entry in _entries(names, routers):
        entries[entry["name"]] = entry
        MANIFEST.write_text(json.dumps(sorted(entries.values(), key=lambda e: e["name"]), indent=1) + "\n")


def _entries(names: Sequence[str], routers: Sequence[str]) -> Iterator[dict[str, Any]]:
    def wanted(name: str) -> bool:
        return not names or name in names

    for router in routers:
        with running_daemon() as agent, Bed.start(wedge="idle", router=router) as bed:
            for wedge in filter(wanted, TABLE):
                bed.enter(wedge)
                bed.wait_wedged(settled=True)
                expected = TABLE[wedge][router]
                holders = sorted(expected.pids(bed.pids))
                yield _keep(bed, agent.address, f"{wedge}/{router}/before", [expected.code], holders)
                with running_daemon() as late:
                    yield _keep(bed, late.address, f"{wedge}/{router}/after", [expected.code], holders)
            for state in filter(wanted, HEALTHY):
                for time in range(_HEALTHY_TIMES):
                    bed.enter(state)
                    bed.wait_wedged()
                    yield _keep(bed, agent.address, f"{state}/{router}/{time}", sorted(HEALTHY[state]), [])


def _keep(bed: Bed, address: str, name: str, codes: list[str], holders: list[int]) -> dict[str, Any]:
    """One snapshot of the bed's own processes, as the corpus keeps it."""
    own = [word for pid in bed.pids.all() for word in ("-p", str(pid))]
    with tempfile.TemporaryDirectory() as folder:
        done = freezeframe("--quiet", "snap", *own, "-o", f"{folder}/case.ffz", address, cwd=Path(folder))
        if done.returncode not in (0, 4):
            raise RuntimeError(f"{name}: exit {done.returncode}: {done.stderr}")
        snapshot = _renamed(read(Path(folder, "case.ffz")))
    assert snapshot.meta is not None
    meta = replace(snapshot.meta, host=_HOST, snapshot_id=f"{_HOST}-{name.replace('/', '-')}")
    target = CORPUS / f"{name.replace('/', '-')}.ffz"
    target.write_bytes(
        file.write([replace(snapshot, meta=meta, verdict=None, findings=(), hops=(), edges=())], "tests")
    )
    print(name, flush=True)
    return {"name": name, "kind": "bed", "codes": codes, "holders": holders, "file": target.name}


def _renamed(value: Any) -> Any:
    """Without what tells of the machine that recorded it."""
    if isinstance(value, str):
        return value.replace(str(_ROOT), "/srv/bed")
    if isinstance(value, tuple):
        return tuple(_renamed(each) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _renamed(getattr(value, field.name)) for field in fields(value)})
    return value
