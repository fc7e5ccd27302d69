"""Another kernel: Debian's, booted under qemu over this machine's own file system, which it can only read.

The processor is emulated: a virtual machine inside a virtual machine does not boot everywhere where /dev/kvm opens.

The kernel's package is downloaded, never installed. The guest has the host's root read-only (9p), memory for /run, and
a serial line on which the command's output comes back.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

_MODULES = (
    "drivers/virtio/virtio_ring.ko",
    "drivers/virtio/virtio.ko",
    "drivers/virtio/virtio_pci_modern_dev.ko",
    "drivers/virtio/virtio_pci_legacy_dev.ko",
    "drivers/virtio/virtio_pci.ko",
    "fs/netfs/netfs.ko",
    "fs/fscache/fscache.ko",
    "net/9p/9pnet.ko",
    "net/9p/9pnet_virtio.ko",
    "fs/9p/9p.ko",
)
_INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
for module in {modules}; do /bin/busybox insmod /modules/$module; done
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=524288 root /host
/bin/busybox mount -t proc proc /host/proc
/bin/busybox mount -t sysfs sys /host/sys
/bin/busybox mount -t tracefs tracefs /host/sys/kernel/tracing
/bin/busybox mount -t devtmpfs dev /host/dev
/bin/busybox mount -t tmpfs none /host/run
/bin/busybox ip link set lo up
echo "guest begins"
export HOME=/run TMPDIR=/run PYTHONDONTWRITEBYTECODE=1 PATH=/usr/bin:/bin:/sbin
/bin/busybox chroot /host {command}
echo "guest ends with $?"
/bin/busybox poweroff -f
"""
MEMORY_MB = 2048


def lacks() -> str | None:
    """Why no guest can be booted here; None when one can."""
    for program in ("qemu-system-x86_64", "apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            return f"no {program} here: sh packaging/setup.sh --kernels"
    if not os.path.exists("/bin/busybox"):
        return "no busybox here: sh packaging/setup.sh --kernels"
    return None


def debian_kernel(folder: Path) -> Path:
    """Download and unpack the distribution's kernel below `folder`; gives the unpacked package."""
    depends = subprocess.run(
        ["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"Depends: (linux-image-[0-9]\S+)", depends)
    assert found is not None, depends
    subprocess.run(["apt-get", "download", "-qq", found[1]], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    (package,) = folder.glob("linux-image-*.deb")
    unpacked = folder / "kernel"
    subprocess.run(["dpkg-deb", "--extract", str(package), str(unpacked)], check=True)
    return unpacked


def run_in(kernel: Path, command: list[str], folder: Path, *, timeout_s: float = 240.0) -> str:
    """Boot the kernel, run one command, give what came on the serial line."""
    (image,) = kernel.glob("boot/vmlinuz-*")
    (modules,) = kernel.glob("lib/modules/*/kernel")
    initrd = _initrd(modules, command, folder)
    done = subprocess.run(
        [
            "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", str(MEMORY_MB),
            "-kernel", str(image), "-initrd", str(initrd), "-append", "console=ttyS0 quiet panic=-1",
            "-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
            "-nographic", "-no-reboot", "-nic", "none",
        ],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout_s,
    )  # fmt: skip
    return done.stdout + done.stderr


def _initrd(modules: Path, command: list[str], folder: Path) -> Path:
    root = folder / "initrd"
    for name in ("bin", "proc", "host", "modules"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin" / "busybox")
    names = []
    for path in _MODULES:
        if (modules / path).exists():
            shutil.copy(modules / path, root / "modules")
            names.append(Path(path).name)
    init = root / "init"
    init.write_text(_INIT.format(modules=" ".join(names), command=shlex.join(command)))
    init.chmod(0o755)
    files = "\n".join(str(each.relative_to(root)) for each in [root, *root.rglob("*")])
    packed = subprocess.run(
        ["/bin/busybox", "cpio", "-o", "-H", "newc"], cwd=root, input=files.encode(), capture_output=True, check=True
    ).stdout
    image = folder / "initrd.gz"
    image.write_bytes(gzip.compress(packed, 1))
    return image
