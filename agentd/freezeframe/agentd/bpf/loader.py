"""Compiles the programs with BCC, attaches them, and hands descriptors over: in a process that then ends.

BCC brings a compiler of 100 MB with it, so whoever keeps the programs running is another process: it starts this one
(`load`) and gets the descriptors of maps and attachments over a socket. A program is attached as long as somebody
holds its descriptor; nothing is pinned, so SIGKILL of the holder takes all of it away.

BCC gets its headers from `headers/`, copied with this kernel's version into a directory of ours that nobody else may
write (0700): never from /tmp, and from a kernel's own headers only when asked (root-owned then). bcc is the
distribution's (python3-bpfcc), pure Python over libbcc, so any Python 3 may import it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from freezeframe.agentd.bpf.errors import BpfError
from freezeframe.agentd.bpf.maps import Map
from freezeframe.agentd.groups import end_with_parent

ROOM = Path(__file__).resolve().parent
# Where distributions put python3-bpfcc.
DISTRIBUTION = ("/usr/lib/python3/dist-packages", "/usr/lib/python3/site-packages", "/usr/lib64/python3/site-packages")
INSTALL = "apt install python3-bpfcc, or: dnf install python3-bcc"
_ARCHITECTURES = {"x86_64": "x86"}
_ANSWER_BYTES = 65536
_LOG_CHARACTERS = 2000
_MESSAGE_FDS = 250
_TRACEFS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_PER_CPU = frozenset({5, 6, 10})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """One program of a file and where it is attached: "raw:sys_exit", "tracepoint:sock:inet_sock_set_state"."""

    function: str
    point: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFile:
    """One file to compile, and what to attach of it."""

    # "ledger.bpf.c", in this room.
    file: str
    attachments: tuple[Attachment, ...]
    # Constants, through -D.
    defines: tuple[tuple[str, int], ...] = ()
    # Programs that others continue with: index in the table `continuations`, function.
    continuations: tuple[str, ...] = ()
    # Whether it is compiled or attached by what tracefs says of the kernel's events.
    needs_tracefs: bool = False
    # What is run when this one cannot be: tried in order.
    otherwise: ProgramFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Programs that run as long as these descriptors are open."""

    maps: Mapping[str, Map]
    # Attachments, and programs that nothing else holds.
    descriptors: tuple[int, ...]
    # Which of the alternatives runs: 0 = the first.
    rung: int
    # Why earlier ones do not.
    passed: tuple[str, ...]
    duration_ms: float

    def close(self) -> None:
        """Detach everything."""
        for descriptor in (*self.descriptors, *(each.fd for each in self.maps.values())):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def locked_bytes(self) -> int:
        """Kernel memory of all maps."""
        return sum(each.locked_bytes() for each in self.maps.values())


def load(program: ProgramFile, directory: str, *, kernel_headers: str = "", timeout_s: float = 60.0) -> Loaded:
    """Compile and attach in a process of its own; `directory` is ours, 0700. Raises BpfError."""
    check_private(directory)
    started = time.monotonic()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        arguments = [sys.executable, "-m", __name__, str(theirs.fileno()), directory, kernel_headers, str(os.getpid())]
        child = subprocess.Popen(
            [*arguments, json.dumps(asdict(program))],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            cwd="/",
        )
        theirs.close()
        try:
            answer, descriptors = _receive(ours, timeout_s)
        finally:
            child.kill()
            child.wait()
    if answer.get("error"):
        _close(descriptors)
        raise BpfError(str(answer["error"]), str(answer.get("hint", "")))
    maps = {}
    for given in answer["maps"]:
        maps[given["name"]] = Map(**{**given, "fd": descriptors[given["fd"]]})
    return Loaded(
        maps=maps,
        descriptors=tuple(descriptors[len(maps) :]),
        rung=answer["rung"],
        passed=tuple(answer["passed"]),
        duration_ms=(time.monotonic() - started) * 1000,
    )


def _receive(ours: socket.socket, timeout_s: float) -> tuple[dict[str, Any], list[int]]:
    if not select.select([ours], [], [], timeout_s)[0]:
        raise BpfError(f"compiling the recorder's programs: not done within {timeout_s:.0f} s", "look at the load")
    data, descriptors, _, _ = socket.recv_fds(ours, _ANSWER_BYTES, _MESSAGE_FDS)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if not data:
        raise BpfError("compiling the recorder's programs: the compiler ended without an answer", "see the log")
    answer: dict[str, Any] = json.loads(data)
    return answer, list(descriptors)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def check_private(directory: str) -> None:
    """Raise BpfError unless a directory is ours alone."""
    try:
        found = os.lstat(directory)
    except OSError as error:
        raise BpfError(f"using {directory}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise BpfError(f"using {directory}: others may write there or read it", f"chmod 700 {directory}")


def write_headers(directory: str, release: str | None = None, machine: str | None = None) -> str:
    """Write our header tree below `directory`, with this kernel's version; gives its path. Raises BpfError."""
    check_private(directory)
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise BpfError(f"the recorder's programs know no {machine}: x86_64 only")
    version = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", release or platform.release())
    if version is None:
        raise BpfError(f"reading the kernel's release {release!r}: not a version")
    major, minor, patch = (int(part or 0) for part in version.groups())
    root = tempfile.mkdtemp(prefix="headers-", dir=directory)
    shutil.copytree(ROOM / "headers", root, dirs_exist_ok=True)
    Path(root, "include/linux/version.h").write_text(
        "#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + ((c) > 255 ? 255 : (c)))\n"
        f"#define LINUX_VERSION_CODE KERNEL_VERSION({major}, {minor}, {patch})\n",
        encoding="ascii",
    )
    Path(root, "arch", _ARCHITECTURES[machine], "include").mkdir(parents=True, exist_ok=True)
    return root


def check_kernel_headers(path: str) -> None:
    """Raise BpfError unless a tree of kernel headers, and all above it, is root's alone to write."""
    for each in (Path(path), *Path(path).resolve().parents):
        found = os.stat(each)
        if found.st_uid != 0 or found.st_mode & 0o022:
            raise BpfError(f"using the kernel headers {path}: {each} can be written by others than root")


def find_bcc(paths: Sequence[str] = DISTRIBUTION) -> ModuleType:
    """Import the distribution's bcc, and nothing else of its directory. Raises BpfError."""
    candidates = (importlib.util.find_spec("bcc"), importlib.machinery.PathFinder.find_spec("bcc", list(paths)))
    for spec in candidates:
        folders = spec.submodule_search_locations if spec is not None else None
        # The package of that name on PyPI is another thing.
        if spec is None or spec.loader is None or not any(Path(each, "libbcc.py").exists() for each in folders or ()):
            continue
        module = importlib.util.module_from_spec(spec)
        sys.modules["bcc"] = module
        try:
            with warnings.catch_warnings():
                # Of its source, where it is compiled for this Python for the first time.
                warnings.simplefilter("ignore")
                spec.loader.exec_module(module)
        except OSError as error:
            del sys.modules["bcc"]
            raise BpfError(f"importing bcc: {error}", INSTALL) from error
        return module
    raise BpfError("importing bcc: it is not installed", INSTALL)


@contextlib.contextmanager
def _captured_stderr(into: list[str]) -> Iterator[None]:
    """Collect what libbcc and the verifier print."""
    sys.stderr.flush()
    saved = os.dup(2)
    kept = os.memfd_create("stderr", os.MFD_CLOEXEC)
    os.dup2(kept, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        size = os.fstat(kept).st_size
        into.append(os.pread(kept, size, 0).decode("utf-8", "replace")[-_LOG_CHARACTERS:])
        os.close(kept)


def _compile(bcc: ModuleType, program: ProgramFile) -> tuple[list[dict[str, Any]], list[int], list[int]]:
    """Give the maps, their descriptors, and the descriptors that keep the programs attached. Raises Exception."""
    flags = [f"-I{ROOM}", "-Wno-everything", *(f"-D{name}={value}" for name, value in program.defines)]
    text = (ROOM / program.file).read_text(encoding="ascii")
    bpf = bcc.BPF(text=text, cflags=flags)
    kept = []
    raw = all(each.point.startswith("raw:") for each in program.attachments)
    kind = bcc.BPF.RAW_TRACEPOINT if raw else bcc.BPF.TRACEPOINT
    for number, name in enumerate(program.continuations):
        function = bpf.load_func(name, kind)
        bpf["continuations"][number] = function.fd
        kept.append(os.dup(function.fd))
    for each in program.attachments:
        way, _, point = each.point.partition(":")
        if way == "raw":
            bpf.attach_raw_tracepoint(tp=point, fn_name=each.function)
        else:
            bpf.attach_tracepoint(tp=point, fn_name=each.function)
    kept += [*bpf.raw_tracepoint_fds.values(), *bpf.tracepoint_fds.values()]
    maps, descriptors = _maps(bcc, bpf.module)
    # Its destructor would detach what was just handed over.
    _ALIVE.append(bpf)
    return maps, descriptors, kept


_ALIVE: list[object] = []


def _maps(bcc: ModuleType, module: int) -> tuple[list[dict[str, Any]], list[int]]:
    """Ask libbcc for what Python's bcc does not tell of each map."""

    def ask(what: str, kind: Any, *more: int) -> Any:
        function = getattr(bcc.libbcc.lib, f"bpf_{what}")
        function.restype = kind
        function.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t for _ in more]]
        return function(module, *more)

    maps, descriptors = [], []
    for number in range(ask("num_tables", ctypes.c_size_t)):
        per_cpu = ask("table_type_id", ctypes.c_int, number) in _PER_CPU
        value_size = ask("table_leaf_size_id", ctypes.c_size_t, number)
        maps.append(
            {
                "name": ask("table_name", ctypes.c_char_p, number).decode(),
                "fd": number,
                "key_size": ask("table_key_size_id", ctypes.c_size_t, number),
                "value_size": (value_size + 7) // 8 * 8 if per_cpu else value_size,
                "max_entries": ask("table_max_entries_id", ctypes.c_size_t, number),
                "cpus": _possible_cpus() if per_cpu else 1,
            }
        )
        descriptors.append(ask("table_fd_id", ctypes.c_int, number))
    return maps, descriptors


def _possible_cpus() -> int:
    with open("/sys/devices/system/cpu/possible", encoding="ascii") as stream:
        return int(re.split(r"[-,]", stream.read().strip())[-1]) + 1


def _from_json(given: dict[str, Any]) -> ProgramFile:
    return ProgramFile(
        file=given["file"],
        attachments=tuple(Attachment(**each) for each in given["attachments"]),
        defines=tuple((name, value) for name, value in given["defines"]),
        continuations=tuple(given["continuations"]),
        needs_tracefs=given["needs_tracefs"],
        otherwise=_from_json(given["otherwise"]) if given["otherwise"] else None,
    )


def mount_tracefs() -> str:
    """Have tracefs for this process alone where the host has none mounted; gives why not, empty when it is there."""
    if any(os.path.isdir(os.path.join(each, "events")) for each in _TRACEFS):
        return ""
    libc = ctypes.CDLL(None, use_errno=True)
    # Not even for a moment in anybody else's sight: mounts of this process propagate to none.
    if libc.unshare(_CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0:  # noqa: SIM102
        if libc.mount(b"tracefs", _TRACEFS[0].encode(), b"tracefs", 0, None) == 0:
            return ""
    return f"mounting tracefs: {os.strerror(ctypes.get_errno())}"


def _answer(directory: str, kernel_headers: str, first: ProgramFile) -> tuple[dict[str, Any], list[int]]:
    bcc = find_bcc()
    if kernel_headers:
        check_kernel_headers(kernel_headers)
        os.environ["BCC_KERNEL_SOURCE"] = kernel_headers
        headers = None
    else:
        headers = os.environ["BCC_KERNEL_SOURCE"] = write_headers(directory)
    passed: list[str] = []
    program: ProgramFile | None = first
    try:
        while program is not None:
            said: list[str] = []
            if program.needs_tracefs and (why := mount_tracefs()):
                passed.append(f"{program.file}: {why}")
                program = program.otherwise
                continue
            try:
                with _captured_stderr(said):
                    maps, descriptors, kept = _compile(bcc, program)
            except Exception as error:  # noqa: BLE001 - bcc raises Exception itself
                passed.append(f"{program.file}: {error}: {said[0] if said else ''}".strip())
                program = program.otherwise
                continue
            return {"maps": maps, "rung": len(passed), "passed": passed}, [*descriptors, *kept]
    finally:
        if headers is not None:
            shutil.rmtree(headers, ignore_errors=True)
    return {"error": f"loading the recorder's programs: {passed[-1]}", "hint": "freezeframe doctor"}, []


def main(argv: Sequence[str]) -> None:
    """Be the compiler: answer on the inherited socket, then wait to be ended by whoever asked."""
    end_with_parent(int(argv[3]), signal.SIGKILL)
    with socket.socket(fileno=int(argv[0])) as asker:
        try:
            answer, descriptors = _answer(argv[1], argv[2], _from_json(json.loads(argv[4])))
        except BpfError as error:
            answer, descriptors = {"error": error.detail, "hint": error.hint}, []
        socket.send_fds(asker, [json.dumps(answer).encode()[:_ANSWER_BYTES]], descriptors)
        asker.recv(1)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
