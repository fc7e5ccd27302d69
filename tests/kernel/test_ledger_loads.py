from __future__ import annotations

import ctypes
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from freezeframe.agentd.bpf import compiled, compiler, layout, loader, programs
from freezeframe.agentd.bpf.errors import BpfError
from freezeframe.agentd.recorder.ledger import Ledger
from tests.support.bpf_objects import held_by, present

pytestmark = pytest.mark.needs("kernel")

STRUCTS = {
    "watched": ("value", layout.WATCH, layout.Watch._fields),
    "descriptors": ("key", layout.DESCRIPTOR, ("tgid", "fd")),
    "connections": ("value", layout.CONNECTION, layout.Connection._fields),
    "streams": ("value", layout.STREAM_STATE, layout.Stream._fields[2:]),
    "control": ("value", layout.CONTROL, ("sweep",)),
}


def test_no_kernel_headers_are_installed_here() -> None:
    """What the other tests of this room prove, they prove without any."""
    assert not Path("/lib/modules", os.uname().release, "build").exists()
    assert not list(Path("/usr/src").glob("linux-headers*"))


@pytest.mark.filterwarnings("ignore")  # of bcc
def test_structs_are_those_of_the_c(private_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCC_KERNEL_SOURCE", compiler.write_headers(str(private_directory)))
    bcc = compiler.find_bcc()
    flags = ["-Wno-everything", *(f"-D{name}={value}" for name, value in layout.SIZES)]
    bpf = bcc.BPF(text=compiler.source("ledger.bpf.c"), cflags=flags)
    try:
        for name, (part, struct, fields) in STRUCTS.items():
            kind = bpf[name].Leaf if part == "value" else bpf[name].Key
            assert ctypes.sizeof(kind) == struct.size, name
            data = bytes(1 + i % 250 for i in range(struct.size))
            for field, value in zip(fields, struct.unpack(data), strict=True):
                of_c = getattr(kind.from_buffer_copy(data), field)
                as_int = int.from_bytes(value, "little") if isinstance(value, bytes) else value
                assert of_c == as_int, (name, field)
        head = bpf["heads"].Leaf
        assert (head.bytes.offset, ctypes.sizeof(head)) == (layout.HEAD.size, layout.HEAD_SIZE)
    finally:
        bpf.cleanup()


def test_the_locked_memory_is_what_the_documents_say(ledger: Ledger) -> None:
    assert 20_000_000 < ledger.locked_bytes() < 32_000_000


def test_all_is_gone_when_it_is_closed(private_directory: Path) -> None:
    before = held_by(os.getpid())
    loaded = loader.load(programs.LEDGER, str(private_directory))
    held = held_by(os.getpid()) - before
    assert len([kind for kind, _ in held if kind == "map_id"]) == len(loaded.maps)
    assert present(held) == held
    loaded.close()
    give_up = time.monotonic() + 5
    while present(held):
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.mark.parametrize("python", ["3.10", "3.12", "3.13"])
def test_bcc_is_found_from_any_python(python: str) -> None:
    found = [path for path in Path("/root/.pyenv/versions").glob(f"{python}.*/bin/python") if path.exists()]
    if not found:
        pytest.skip(f"no Python {python} here")
    code = (
        "import sys, importlib.util\n"
        "sys.path[:0] = sys.argv[1:]\n"
        "from freezeframe.agentd.bpf import compiler\n"
        "print(compiler.find_bcc().BPF.__name__, sum('dist-packages' in each for each in sys.path))\n"
    )
    source = str(Path(__file__).resolve().parents[2] / "agentd")
    done = subprocess.run([found[0], "-c", code, source], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("BPF 0\n", "")


def refused(directory: Path, function: str, point: str) -> str:
    wrong = compiled.ProgramFile(
        file="ledger.bpf.c",
        attachments=(compiled.Attachment(function=function, point=point),),
        defines=(*layout.SIZES, ("TYPED_REGISTERS", 1)),
    )
    with pytest.raises(BpfError) as refusal:
        loader.load(wrong, str(directory))
    return refusal.value.detail


def test_a_program_that_does_not_load_says_what_the_kernel_said(private_directory: Path) -> None:
    said = refused(private_directory, "on_exit", "raw:no_such_tracepoint")
    assert said.endswith("ledger.bpf.c: attaching to no_such_tracepoint: No such file or directory")
    said = refused(private_directory, "on_sys_exit", "typed:no_such_tracepoint")
    assert "no typedef btf_trace_no_such_tracepoint" in said
    # A task is no registers.
    said = refused(private_directory, "on_sys_exit", "typed:sched_process_exit")
    assert said.startswith("loading the recorder's programs: ledger.bpf.c: loading the program on_sys_exit: ")
    assert "task_struct" in said


def test_what_does_not_compile_says_what_the_compiler_said(private_directory: Path) -> None:
    with pytest.raises(BpfError) as refusal:
        loader.load(compiled.ProgramFile(file="ledger.bpf.c"), str(private_directory))
    assert "use of undeclared identifier 'HEAD_BYTES'" in refusal.value.detail


def test_what_was_compiled_is_kept_as_long_as_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)

    def kept() -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in tmp_path.iterdir()}

    first = loader.load(programs.URING, str(tmp_path))
    first.close()
    (name,) = kept()
    assert name.startswith(loader.KEPT)
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    before = kept()
    with monkeypatch.context() as patch:
        # No compiler is run.
        patch.setattr(compiler, "__name__", "freezeframe.no_such_module")
        second = loader.load(programs.URING, str(tmp_path))
        assert (set(second.maps), second.rung, second.passed) == (set(first.maps), 0, ())
        second.close()
    # What is damaged is made anew.
    (tmp_path / name).write_bytes(before[name][:100])
    loader.load(programs.URING, str(tmp_path)).close()
    assert kept() == before
    # Other constants, another program.
    loader.load(replace(programs.URING, defines=(("OTHER", 1),)), str(tmp_path)).close()
    assert len(kept()) == 2


def test_a_directory_of_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(BpfError, match="others may write there or read it"):
        loader.load(programs.LEDGER, str(tmp_path))
