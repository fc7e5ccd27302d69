#!/bin/sh
# What people run today at a lock-up, in sequence: the thing to be faster than.
#
# quick_script.sh PYSPY ROUTER_PID METRICS_URLS LOG PID...
set -u
pyspy=$1 router=$2 urls=$3 log=$4
shift 4
for pid in "$@"; do
    "$pyspy" dump --pid "$pid"
done
gdb -batch -p "$router" -ex 'thread apply all bt' 2>/dev/null
ss -tinp
for url in $urls; do
    curl -s -m 2 "$url"
done
tail -n 200 "$log"
ps -eLo pid,tid,stat,wchan:32,pcpu,comm,args
