#!/bin/sh
# Installs the system packages that freezeframe uses, where this user may; says what is missing where not.
#
# setup.sh [--test] [--bench] [--package] [--kernels]   --test adds the programs that tests trace, --bench what only
# tests/bench compares with (gdb, eu-stack), --package what packages are made and tried with (rpm, debootstrap), --kernels
# what boots another kernel (qemu) and unpacks another BCC (debootstrap).
set -eu

packages="python3-bpfcc libdw1 iproute2 procps"
# Debian has venv apart from Python.
python3 -c "import ensurepip" 2>/dev/null || packages="$packages python3-venv"
# For tests: journal files, published ports.
packages="$packages systemd-journal-remote iptables"
for option in "$@"; do
    case "$option" in
    --test)
        packages="$packages chromium curl nginx-light openssl openssh-client openssh-server"
        command -v node >/dev/null 2>&1 || packages="$packages nodejs"
        ;;
    --bench) packages="$packages gdb elfutils curl" ;;
    --package) packages="$packages debootstrap rpm" ;;
    --kernels) packages="$packages qemu-system-x86 busybox-static debootstrap" ;;
    *)
        echo "setup.sh: unknown option $option" >&2
        exit 2
        ;;
    esac
done

missing=""
if command -v dpkg-query >/dev/null 2>&1; then
    for package in $packages; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing="$missing $package"
    done
else
    echo "setup.sh: no dpkg here: install the equivalents of: $packages" >&2
    exit 0
fi
[ -z "$missing" ] && exit 0

if [ "$(id -u)" -ne 0 ]; then
    echo "setup.sh: missing:$missing" >&2
    echo "setup.sh: as root: apt-get install --yes$missing" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# Nothing that is installed for tests is started as a service.
export RUNLEVEL=1
apt-get update -qq || echo "setup.sh: apt-get update did not succeed; trying with the lists at hand" >&2
# shellcheck disable=SC2086  # one word per package
apt-get install --yes --no-install-recommends -qq $missing >/dev/null || {
    echo "setup.sh: could not install:$missing" >&2
    echo "setup.sh: freezeframe works without them, with less: freezeframe doctor says what" >&2
}
