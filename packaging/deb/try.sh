#!/bin/sh
# Tries the package in a fresh root under systemd: try.sh VENV [ROOT]. As root; ten minutes; debootstrap unless ROOT is given.
#
# Builds two revisions, the first one twice, in two directories: both times it must come out the same.
set -eu
cd "$(dirname "$0")/../.."
venv="$(cd "$1" && pwd)"
work="$(mktemp --directory --tmpdir=/var/tmp freezeframe-try-XXXXXX)"
group="freezeframe-try-$$"
booted=""
first=""
clean() {
    # The first process of a namespace takes all others with it; of what unshare promises systemd knows nothing.
    [ -z "$first" ] || kill -KILL "$first" 2>/dev/null || true
    [ -z "$booted" ] || kill "$booted" 2>/dev/null || true
    [ -z "$booted" ] || wait "$booted" 2>/dev/null || true
    for hierarchy in /sys/fs/cgroup/unified /sys/fs/cgroup/systemd /sys/fs/cgroup; do
        [ ! -d "$hierarchy/$group" ] || find "$hierarchy/$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    rm -rf "$work"
}
trap clean EXIT

if [ $# -gt 1 ]; then
    cp -a "$2" "$work/root"
else
    # shellcheck source=/dev/null
    debootstrap --variant=minbase --include=systemd,python3-bpfcc,libdw1 "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$work/root"
fi
sh packaging/build.sh "$venv" >/dev/null
mkdir -p "$work/root/root/first" "$work/root/root/second" "$work/rpm"
cp dist/*.deb "$work/root/root/first/"
sha256sum dist/* >"$work/sums"
mkdir "$work/elsewhere"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --target-directory="$work/elsewhere"
SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)" sh "$work/elsewhere/packaging/build.sh" "$venv" >/dev/null
(cd "$work/elsewhere" && sha256sum --check --quiet "$work/sums")
echo "the same bytes from two directories:"
ls dist
rm -rf "$work/elsewhere" dist/*.deb
[ ! -e dist/*.rpm ] || mv dist/*.rpm "$work/rpm/"
REVISION=2 sh packaging/build.sh "$venv" >/dev/null
mv dist/*-2_*.deb "$work/root/root/second/"
cp "$work"/root/root/first/*.deb dist/
if command -v rpm >/dev/null; then
    cp -a "$work/root" "$work/rpm-root"
    sh packaging/rpm/try.sh "$work/rpm-root" "$work"/rpm/*-1.*.rpm dist/*-2.*.rpm
    mv -f "$work"/rpm/*.rpm dist/
    rm dist/*-2.*.rpm
else
    echo "no rpm here (apt install rpm): it is not tried" >&2
fi
cp packaging/deb/inside.sh "$work/root/root/"

# What a container has none of.
for unit in systemd-udevd.service systemd-udev-trigger.service systemd-logind.service getty@.service console-getty.service; do
    ln -sf /dev/null "$work/root/etc/systemd/system/$unit"
done
rm -f "$work/root/etc/machine-id"
echo uninitialized >"$work/root/etc/machine-id"

(
    for hierarchy in /sys/fs/cgroup/unified /sys/fs/cgroup/systemd /sys/fs/cgroup; do
        [ -e "$hierarchy/cgroup.procs" ] || continue
        mkdir -p "$hierarchy/$group"
        sh -c "echo \$PPID >'$hierarchy/$group/cgroup.procs'"
    done
    exec unshare --pid --fork --kill-child --mount --cgroup --uts --ipc --net sh packaging/deb/boot.sh "$work/root"
) >"$work/boot.log" 2>&1 &
booted=$!
for _ in $(seq 240); do
    first="$(cat "/proc/$booted/task/$booted/children" 2>/dev/null || true)"
    first="${first%% *}"
    [ -n "$first" ] && nsenter --target "$first" --all systemctl is-system-running 2>/dev/null | grep -qE 'running|degraded' && break
    sleep 0.5
done
nsenter --target "$first" --all sh /root/inside.sh
