#!/bin/sh
# capture-before-restart.sh [NOTE]: capture what a serving process is doing before it is stopped, in at most 3 s.
#
# For ExecStop= of a unit and preStop of a pod: a stuck engine that is restarted takes the evidence with it. It never
# fails and never takes longer, so that it keeps nothing from being stopped. The agent keeps what it captured:
# freezeframe list --note before-restart
set -u
kept=$(mktemp -d) || exit 0
timeout --kill-after=0.1 2.8 freezeframe snap --window 0.5 --deadline 2 \
    --note "before-restart${1:+ $1}" --output brief -o "$kept" >/dev/null 2>&1
rm -rf "$kept"
exit 0
