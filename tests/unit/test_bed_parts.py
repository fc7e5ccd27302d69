from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed import outside, processes
from tests.bed.programs import bedlink
from tests.bed.tokenizer_folder import write_tokenizer
from tests.bed.wedges import WEDGES, find_wedge

LINE = (
    'ESTAB 12 3 127.0.0.1:30000 127.0.0.1:41000 users:(("python",pid=77,fd=9)) cubic rto:204 bytes_sent:5 '
    "bytes_acked:5 bytes_received:240 segs_out:3 lastsnd:900 lastrcv:400 lastack:400"
)


def test_a_line_of_ss() -> None:
    entry = outside._parse(LINE)
    assert entry == outside.Connection(
        state="ESTAB",
        recv_q=12,
        send_q=3,
        local_port=30000,
        peer_port=41000,
        pid=77,
        last_sent_ms=900,
        last_received_ms=400,
        bytes_sent=5,
        bytes_received=240,
    )
    assert entry.owes


@pytest.mark.parametrize(
    ("ages", "sent", "owes"),
    [
        ("lastsnd:400 lastrcv:400", 5, False),
        ("lastsnd:400 lastrcv:900", 5, False),
        ("lastsnd:400 lastrcv:400", 0, True),
    ],
)
def test_who_owes(ages: str, sent: int, *, owes: bool) -> None:
    line = LINE.replace("lastsnd:900 lastrcv:400", ages).replace("bytes_sent:5", f"bytes_sent:{sent}")
    entry = outside._parse(line)
    assert entry is not None
    assert entry.owes is owes


def test_wedges_are_found_by_name_and_named_once() -> None:
    names = [wedge.name for wedge in WEDGES]
    assert len(names) == len(set(names))
    assert all(find_wedge(name).name == name for name in names)
    with pytest.raises(ValueError, match=r"no wedge 'nonsense'.*router-dual-leg"):
        find_wedge("nonsense")


def test_ports_are_free_and_distinct() -> None:
    ports = processes.free_ports(6)
    assert len(set(ports)) == 6
    for port in ports:
        with socket.socket() as free:
            free.bind(("127.0.0.1", port))


def test_control_channel(tmp_path: Path) -> None:
    def answer(request: dict[str, object]) -> dict[str, object]:
        return {"twice": request["number"] * 2}  # type: ignore[operator]

    path = str(tmp_path / "ctl")
    bedlink.serve_control(path, answer)
    assert bedlink.ask(path, {"number": 21}) == {"twice": 42}
    with pytest.raises(RuntimeError, match="KeyError"):
        bedlink.ask(path, {})


def test_a_child_is_capped_and_says_what_ended_it(tmp_path: Path) -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)); raise SystemExit(7)"
    child = processes.start("one", [sys.executable, "-c", code], run_dir=tmp_path, env={}, memory_mib=64)
    with pytest.raises(processes.BedError, match="one ended with 7"):
        processes.wait_for("never", lambda: False, timeout_s=10, children=[child])
    assert child.tail() == f"({64 << 20}, {64 << 20})\n"


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom tests.bed import processes\n"
        "child = processes.start('c', ['/bin/sleep', '600'], run_dir=Path(sys.argv[1]), env={}, memory_mib=64)\n"
        "print(child.pid)"
    )
    parent = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    pid = int(parent.stdout)
    processes.wait_for("the child to end", lambda: processes.ended(pid), timeout_s=10, children=[])


def test_ended() -> None:
    assert not processes.ended(os.getpid())
    done = subprocess.Popen(["/bin/true"])
    processes.wait_for("true to end", lambda: processes.ended(done.pid), timeout_s=10, children=[])
    done.wait()


def test_tokenizer_folder(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "model")
    tokenizer = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    assert tokenizer["model"]["vocab"]["t0"] == 3
    assert sum(file.stat().st_size for file in (tmp_path / "model").iterdir()) < 4096
