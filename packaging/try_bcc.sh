#!/bin/sh
# Tries the recorder's programs under the BCC of another release of Debian, unpacked into .venv-bcc-SUITE; as root.
#
# try_bcc.sh SUITE   "sid" has the newest one; the programs run in this kernel, and their test in a chroot there
set -eu
cd "$(dirname "$0")/.."
suite=${1:?"a suite of Debian: sid"}
root=$PWD/.venv-bcc-$suite
# What is whole has the mark: a root that was cut short is made anew.
if ! test -e "$root/ready"; then
    rm -rf "$root"
    debootstrap --variant=minbase --include=python3-bpfcc "$suite" "$root" http://deb.debian.org/debian >/dev/null
    mkdir "$root/checkout"
    touch "$root/ready"
fi
# Mounted for this command alone.
unshare --mount --propagation private sh -euc '
    mount --bind -o ro . "$1/checkout"
    mount -t proc proc "$1/proc"
    mount --rbind /sys "$1/sys"
    mount -t tmpfs tmpfs "$1/tmp"
    exec chroot "$1" env PYTHONPATH=/checkout/agentd PYTHONDONTWRITEBYTECODE=1 \
        python3 /checkout/tests/programs/recorder_smoke.py SOCKETS URING
' sh "$root" | tee "$root/said"
# By the first way, with the request seen.
grep -q '"rung": 0, .*"requests": \[\["POST", "/v1/chat/completions", "smoke-1"\]\], "others_loaded": \["SOCKETS", "URING"\]' \
    "$root/said"
version=$(chroot "$root" python3 -c "import bcc; print(bcc.__version__)")
echo "try_bcc.sh: BCC $version of $suite: passed"
