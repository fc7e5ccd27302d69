"""ENGINE_HTTP_BLOCKED: the engine's HTTP process does not serve its sockets: its event loop is blocked.

Proof, any of these, while the process can run and has sent no byte to anybody in the window:
- requests have stood unread in its sockets for STUCK_MS or longer;
- its main thread sits in synchronous code under its event loop, the same stack at both looks, while requests wait.
  One look proves this only together with an accept queue or unread requests that are old;
- its liveness endpoint, which asks nothing of the scheduler, is silent, while old requests are owed and nothing waits
  to be accepted.
An answer that has begun and is quiet for longer than the server keeps an idle connection waits too: vLLM sends the
headers of a stream before its first token.
HIGH when sockets and stack agree; else MEDIUM.

Lookalikes: one body that a handler leaves unread while others are served (bytes move); a loop caught once in ordinary
work; an engine that has just started; a stopped one; one that the host gives no CPU; a full accept queue with a resting
loop (ENGINE_NOT_ACCEPTING).
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Connection, Engine, Facts
from freezeframe.judge.model import Confidence, Frame, PythonThread, Verdict
from freezeframe.judge.verdicts._intake import has_served, intake, intake_evidence
from freezeframe.judge.verdicts._proof import (
    gets_bytes,
    kept_waiting,
    loop_blocked,
    runs,
    silent_endpoint,
    stalled,
    stuck,
)
from freezeframe.judge.verdicts._steps import ask, known, stacks
from freezeframe.judge.verdicts._words import count, engine_name, evidence, oldest, quietest, seconds, socket_refs, who

Level = Confidence.Level

# Share of the window in CPU time from which a thread counts as computing.
_COMPUTES = 0.5


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per HTTP process."""
    return tuple(
        v for engine in facts.engines for pid in engine.http_pids if (v := blocked(facts, engine, pid)) is not None
    )


def blocked(facts: Facts, engine: Engine, pid: int) -> Verdict | None:
    """The verdict on one HTTP process."""
    served = facts.to_server(pid)
    if not runs(facts, pid) or kept_waiting(facts, facts.processes[pid]):
        return None
    if not has_served(facts, pid) or gets_bytes(served):
        return None
    found = intake(facts, pid)
    # A loop that turned would send the rest of an answer that has begun, or close the connection.
    waiting = [*stuck(served), *(c for c in stalled(facts, engine) if c.server_pid == pid)]
    stack = loop_blocked(facts, pid)
    stays = stack is not None and (stack[1].same_at_second_look or not facts.two_looks)
    by_stack = stays and bool(waiting) and (facts.two_looks or bool(found.unaccepted or found.unread))
    silent = None if found.unaccepted else silent_endpoint(facts, pid)
    if not (found.unread or by_stack or (silent is not None and waiting)):
        return None
    proved = intake_evidence(found)
    if stack is not None and stays:
        proved.append(evidence(_in_code(stack, facts), f"python_threads[{stack[0]}]"))
    if silent is not None:
        index = facts.snapshot.endpoints.index(silent)
        proved.append(evidence(f"{silent.path}: {silent.error or 'no answer'}", f"endpoints[{index}]"))
    proved.append(
        evidence(
            f"{count(len(waiting), 'request')} wait, the oldest for {seconds(_since(waiting))}", *socket_refs(waiting)
        )
    )
    where = f" in {_place(stack[2])}" if stack is not None and stays else ""
    sure = bool(by_stack and (found.unread or found.unaccepted))
    return Verdict(
        code=Verdict.Code.ENGINE_HTTP_BLOCKED,
        hop=engine.kind,
        holder_pids=(pid,),
        summary=f"The event loop of the {engine_name(engine.kind)}'s HTTP process (pid {pid}) is blocked{where}; "
        f"{count(len(waiting), 'request')} of {who(facts, waiting)} wait, oldest {seconds(_since(waiting))}.",
        confidence=Level.HIGH if sure else Level.MEDIUM,
        evidence=tuple(proved),
        next_steps=(
            stacks(facts, pid, "where its loop sits; if that waits for a lock, who has it is in the same dump"),
            ask(facts, pid, "/model_info", "whether its loop has come back"),
            known("an event loop blocked by rendering or tokenizing in synchronous code"),
        ),
        explains=max(len(waiting), found.waiting),
    )


def _since(waiting: list[Connection]) -> float:
    return max(oldest(waiting) or 0.0, quietest(waiting) or 0.0)


def _in_code(stack: tuple[int, PythonThread, Frame], facts: Facts) -> str:
    _, thread, frame = stack
    looks = "at both looks" if facts.two_looks else "at the one look"
    computes = thread.cpu_ms_delta is not None and thread.cpu_ms_delta >= _COMPUTES * facts.window_ms
    cpu = "" if thread.cpu_ms_delta is None else ", computing" if computes else ", without CPU time"
    return f"main thread is in {_place(frame)} {looks}{cpu}"


def _place(frame: Frame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})"
