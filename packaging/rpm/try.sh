#!/bin/sh
# Tries the package in a root directory: try.sh ROOT FIRST.rpm SECOND.rpm. As root; its scripts run in a chroot there.
#
# Installed, run, upgraded, removed: settings, snapshots and accounts stay, as rpm has it, and nothing else.
set -eu
root="$1"
everything() {
    find "$root" -xdev \( -path "$root/var/lib/rpm" -o -path "$root/var/log" -o -path "$root/tmp" \) -prune \
        -o ! -path "$root/etc/*-" -printf '%y %m %u %g %P %l\n' | sort
}
rpm() { command rpm --root "$root" --dbpath /var/lib/rpm --nodeps "$@"; }
fail() {
    echo "FAILED: rpm: $*" >&2
    exit 1
}

everything >"$root/tmp/before"
command rpm --root "$root" --dbpath /var/lib/rpm --initdb
rpm --install "$2" || fail "installing"
chroot "$root" freezeframe --version >/dev/null || fail "the client does not run"
chroot "$root" freezeframe-agentd --check-config >/dev/null || fail "the agent does not run"
[ -L "$root/etc/systemd/system/multi-user.target.wants/freezeframe-agentd.service" ] || fail "the unit is not enabled"
[ "$(chroot "$root" id -nG freezeframe)" = "freezeframe freezeframe-view freezeframe-capture freezeframe-admin" ] || fail "accounts"
# All of it as it was packed, but for what the dependencies of another distribution bring.
command rpm --root "$root" --dbpath /var/lib/rpm --verify --nodeps freezeframe || fail "files differ from the package"
echo '# kept' >>"$root/etc/freezeframe/agentd.toml"
rpm --upgrade "$3" || fail "upgrading"
grep -q '# kept' "$root/etc/freezeframe/agentd.toml" || fail "settings were overwritten"
rpm --erase freezeframe || fail "removing"
everything >"$root/tmp/after"
left="$(diff "$root/tmp/before" "$root/tmp/after" | sed -n 's/^> //p' | cut -d ' ' -f 5 | tr '\n' ' ')"
[ "$left" = "etc/freezeframe etc/freezeframe/agentd.toml.rpmsave " ] || fail "left behind: $left"
echo "rpm: installed, run, upgraded, removed: settings are left"
