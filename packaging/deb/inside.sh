#!/bin/sh
# What is tried in the fresh root, with systemd running and both packages in /root: installed, used, upgraded, purged.
set -eu
export DEBIAN_FRONTEND=noninteractive

fail() {
    echo "FAILED: $*" >&2
    journalctl --no-pager --unit=freezeframe-agentd | tail -n 20 >&2
    exit 1
}
# All files with owner, mode and target, but for what dpkg keeps of itself and what runs; accounts by content.
everything() {
    find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /dev -o -path /var/lib/dpkg \
        -o -path /var/log -o -path /var/cache -o -path /var/lib/systemd -o -path /root \) -prune \
        -o ! -path '/etc/*-' -printf '%y %m %u %g %p %l\n' | sort
    cat /etc/passwd /etc/group /etc/shadow /etc/gshadow
}
serves() {
    for _ in $(seq 120); do
        freezeframe doctor >/tmp/doctor 2>&1 && return
        sleep 0.5
    done
    cat /tmp/doctor >&2
    fail "the agent does not serve"
}

everything >/tmp/before
dpkg --install /root/first/*.deb || fail "installing"
serves
systemctl is-active --quiet freezeframe-agentd || fail "the unit is not active"
systemctl is-enabled --quiet freezeframe-agentd || fail "the unit is not enabled"
[ "$(stat -c '%a %U %G' /run/freezeframe/capture.sock)" = "660 freezeframe freezeframe-capture" ] || fail "the socket's mode"
grep -q 'root  *present  runs as uid' /tmp/doctor || fail "doctor does not find the five capabilities: $(cat /tmp/doctor)"
freezeframe --quiet snap --output brief -o /tmp/first.ffz || fail "snap"
systemctl enable --quiet --now freezeframe-kernel-stacks || fail "the helper does not start"
for _ in $(seq 120); do [ -S /run/freezeframe-kernel-stacks/socket ] && break; sleep 0.5; done
freezeframe doctor | grep -q 'kernel stacks  *present' || fail "doctor does not see the helper"
# 4: whatever else may be missing here is told.
freezeframe --quiet --output json snap -p 1 -o /tmp/stacks.ffz >/tmp/stacks.json || [ $? -eq 4 ] || fail "snap with kernel stacks"
/opt/freezeframe/bin/python3 -c 'import json
threads = [thread for each in json.load(open("/tmp/stacks.json"))["processes"] if each["pid"] == 1 for thread in each["threads"]]
assert threads and all(thread["kernel_stack"] for thread in threads), threads' || fail "the helper opens no kernel stack"
for file in bash-completion/completions/freezeframe zsh/vendor-completions/_freezeframe \
    fish/vendor_completions.d/freezeframe.fish man/man1/freezeframe-snap.1.gz man/man1/freezeframe-agentd.1.gz; do
    [ -s "/usr/share/$file" ] || fail "/usr/share/$file is not there"
done
[ -x /usr/lib/freezeframe/capture-before-restart.sh ] || fail "nothing captures before a restart"
# A member of the group needs no sudo; another user gets a sentence.
useradd --no-create-home --groups freezeframe-capture member
useradd --no-create-home stranger
HOME=/nonexistent setpriv --reuid member --regid member --init-groups freezeframe --quiet snap --window 0 -o /tmp/member.ffz >/dev/null || fail "a member"
HOME=/nonexistent setpriv --reuid stranger --regid stranger --init-groups freezeframe snap >/tmp/stranger 2>&1 && fail "a stranger was served"
grep -q 'belongs to the group freezeframe-capture' /tmp/stranger || fail "what a stranger is told: $(cat /tmp/stranger)"
userdel member
userdel stranger

echo '# kept' >>/etc/freezeframe/agentd.toml
install -D -m 644 /opt/freezeframe/share/freezeframe/systemd/kernel-stacks.conf \
    /etc/systemd/system/freezeframe-agentd.service.d/kernel-stacks.conf
dpkg --install /root/second/*.deb || fail "upgrading"
serves
grep -q 'CAP_SYS_ADMIN  *present' /tmp/doctor || fail "the drop-in grants nothing: $(cat /tmp/doctor)"
grep -q '# kept' /etc/freezeframe/agentd.toml || fail "settings were overwritten"
[ "$(freezeframe --output json list | grep -c snapshot_id)" -ge 2 ] || fail "kept snapshots are gone"

dpkg --purge freezeframe || fail "purging"
systemctl is-active --quiet freezeframe-agentd && fail "the unit still runs"
everything >/tmp/after
diff /tmp/before /tmp/after >&2 || fail "something was left behind"
echo "installed, used, upgraded, purged: nothing is left"
