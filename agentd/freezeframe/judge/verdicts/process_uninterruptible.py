"""PROCESS_UNINTERRUPTIBLE: a process of the path stayed in an uninterruptible sleep.

Proof: its main thread is in D at both looks, used no CPU time and did not switch in between: it never left. Two looks
are needed, a window apart that is longer than a read of a busy disk takes. With one look nothing is claimed.
The wait channel names the cause: a device, a file system on dead storage, a vfork, a fault under a stalled lock.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.model import Confidence, Process, Thread, Verdict
from freezeframe.judge.verdicts._processes import hop_of, path_processes, waiting_for
from freezeframe.judge.verdicts._steps import step
from freezeframe.judge.verdicts._words import count, evidence, process, process_ref, socket_refs

Level = Confidence.Level

# The default window, less what its two looks may lie apart by.
_WINDOW_MS = 900.0


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per process."""
    if facts.window_ms < _WINDOW_MS:
        return ()
    return tuple(_verdict(facts, p, p.threads[0]) for p in path_processes(facts) if p.threads and _stayed(p.threads[0]))


def _stayed(main: Thread) -> bool:
    still = main.cpu_ms_delta == 0 and not main.voluntary_switches_delta and not main.involuntary_switches_delta
    return main.state == "D" and main.state_after == "D" and still


def _verdict(facts: Facts, p: Process, main: Thread) -> Verdict:
    waiting = waiting_for(facts, p)
    where = main.wchan or (main.kernel_stack[0] if main.kernel_stack else "an unknown place")
    refs = tuple(f"{ref}.threads[0]" for ref in process_ref(facts, p.pid))
    proved = [evidence(f"main thread in D at both looks, in {where}, without CPU time or a switch", *refs)]
    if waiting:
        proved.append(evidence(f"{count(len(waiting), 'request')} wait behind it", *socket_refs(waiting)))
    return Verdict(
        code=Verdict.Code.PROCESS_UNINTERRUPTIBLE,
        hop=hop_of(facts, p),
        holder_pids=(p.pid,),
        summary=f"The {hop_of(facts, p)} process {process(facts, p.pid)} sleeps uninterruptibly in {where}.",
        confidence=Level.HIGH,
        evidence=tuple(proved),
        next_steps=(
            step(
                f"cat /proc/{p.pid}/stack",
                "where in the kernel it waits; no signal reaches it, what it waits for has to be mended",
            ),
            step(
                "dmesg -T | grep -iE 'hung|blocked for|i/o error|nfs|nvme|xid' | tail -20",
                "disk, network file system or driver",
            ),
        ),
        explains=len(waiting),
    )
