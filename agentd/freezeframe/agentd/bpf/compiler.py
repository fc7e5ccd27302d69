"""Compiles one program file with BCC, in a process of its own whose memory goes with it; gives JSON on its output.

BCC gets its headers from `headers/`, copied with this kernel's version into a directory of ours that nobody else may
write (0700): never from /tmp, and from a kernel's own headers only when asked (root-owned then). bcc is the
distribution's (python3-bpfcc), pure Python over libbcc, so any Python 3 may import it. Of what it makes only bytecode
and the shapes of maps are taken: nothing of it is loaded here.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from freezeframe.agentd.bpf import compiled
from freezeframe.agentd.bpf.compiled import Attachment, Compiled, MapShape, ProgramFile
from freezeframe.agentd.bpf.errors import BpfError
from freezeframe.agentd.groups import end_with_parent
from freezeframe.agentd.host.native import btf

ROOM = Path(__file__).resolve().parent
# Where Debian puts python3-bpfcc, and Fedora and RHEL python3-bcc: of whichever Python, since it is pure.
DISTRIBUTION = ("/usr/lib/python3/dist-packages", *sorted(glob.glob("/usr/lib/python3.*/site-packages")))
INSTALL = "apt install python3-bpfcc, or: dnf install python3-bcc"
_ARCHITECTURES = {"x86_64": "x86"}
_TRACEFS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_OWN_HEADER = re.compile(r'#include "(\w+\.h)"')
# Of the functions that TRACEPOINT_PROBE makes: tracepoint__CATEGORY__EVENT.
_PROBE = "tracepoint__"


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


def source(file: str, given: set[str] | None = None) -> str:
    """Give a file with our own headers in it, each once: BCC rewrites what it is given and no file that it includes."""
    given = set() if given is None else given
    lines = []
    for line in (ROOM / file).read_text(encoding="ascii").splitlines():
        included = _OWN_HEADER.fullmatch(line)
        if included is None:
            lines.append(line)
        elif included[1] not in given:
            given.add(included[1])
            lines.append(source(included[1], given))
    return "\n".join(lines) + "\n"


def compile_file(bcc: ModuleType, program: ProgramFile) -> Compiled:
    """Compile for the running kernel. Raises Exception, as bcc does, BpfError and OSError."""

    class Unattached(bcc.BPF):  # type: ignore[name-defined, misc]
        def _trace_autoload(self) -> None:
            """Attach nothing."""

    flags = ["-Wno-everything", *(f"-D{name}={value}" for name, value in program.defines)]
    bpf = Unattached(text=source(program.file), cflags=flags)
    ask = _asker(bcc, bpf.module)
    maps, places = [], {}
    for number in range(ask("num_tables", ctypes.c_size_t)):
        places[ask("table_fd_id", ctypes.c_int, number)] = number
        maps.append(
            MapShape(
                name=ask("table_name", ctypes.c_char_p, number).decode(),
                kind=ask("table_type_id", ctypes.c_int, number),
                key_size=ask("table_key_size_id", ctypes.c_size_t, number),
                value_size=ask("table_leaf_size_id", ctypes.c_size_t, number),
                max_entries=ask("table_max_entries_id", ctypes.c_uint64, number),
                flags=ask("table_flags_id", ctypes.c_int, number),
            )
        )
    code = {}
    for number in range(ask("num_functions", ctypes.c_size_t)):
        name = ask("function_name", ctypes.c_char_p, number)
        start = ask("function_start", ctypes.c_void_p, name)
        code[name.decode()] = compiled.with_maps(
            ctypes.string_at(start, ask("function_size", ctypes.c_size_t, name)), places.__getitem__
        )
    probes = [
        Attachment(function=name, point=f"tracepoint:{':'.join(name.removeprefix(_PROBE).split('__', 1))}")
        for name in code
        if name.startswith(_PROBE)
    ]
    attachments = (*program.attachments, *probes)
    return Compiled(
        maps=tuple(maps),
        code=code,
        attachments=attachments,
        continuations=program.continuations,
        ids=_ids({each.point for each in (*attachments, *program.continuations)}),
    )


def _asker(bcc: ModuleType, module: int) -> Callable[..., Any]:
    """Ask libbcc for what Python's bcc does not tell."""

    def ask(what: str, kind: Any, about: int | bytes | None = None) -> Any:
        function = getattr(bcc.libbcc.lib, f"bpf_{what}")
        function.restype = kind
        if about is None:
            function.argtypes = [ctypes.c_void_p]
            return function(module)
        function.argtypes = [ctypes.c_void_p, ctypes.c_char_p if isinstance(about, bytes) else ctypes.c_size_t]
        return function(module, about)

    return ask


def _ids(points: set[str]) -> dict[str, int]:
    found = {}
    for point in sorted(points):
        way, _, name = point.partition(":")
        if way == "tracepoint":
            found[point] = _event_id(name)
        elif way == "typed":
            found[point] = btf.typedef_id(f"btf_trace_{name}")
    return found


def _event_id(name: str) -> int:
    for root in _TRACEFS:
        with contextlib.suppress(FileNotFoundError):
            return int(Path(root, "events", *name.split(":"), "id").read_text(encoding="ascii"))
    raise BpfError(f"looking up the kernel's event {name}: there is none")


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


def _compile(directory: str, kernel_headers: str, program: ProgramFile) -> Compiled:
    """Raises BpfError."""
    bcc = find_bcc()
    if program.needs_tracefs and (why := mount_tracefs()):
        raise BpfError(f"{program.file}: {why}")
    headers = None
    if kernel_headers:
        check_kernel_headers(kernel_headers)
        os.environ["BCC_KERNEL_SOURCE"] = kernel_headers
    else:
        headers = os.environ["BCC_KERNEL_SOURCE"] = write_headers(directory)
    try:
        return compile_file(bcc, program)
    except Exception as error:  # bcc raises Exception itself
        raise BpfError(f"{program.file}: {error}") from error
    finally:
        if headers is not None:
            shutil.rmtree(headers, ignore_errors=True)


def main(argv: Sequence[str]) -> None:
    """Be the compiler: directory, kernel headers or nothing, pid of whoever asks, program file as JSON."""
    end_with_parent(int(argv[2]), signal.SIGKILL)
    answers = os.dup(1)
    # What else is printed is none.
    os.dup2(2, 1)
    try:
        answer = _compile(argv[0], argv[1], compiled.program_from_json(argv[3])).to_json()
    except BpfError as error:
        answer = json.dumps({"error": error.detail, "hint": error.hint})
    with open(answers, "w", encoding="utf-8") as stream:
        stream.write(answer)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
