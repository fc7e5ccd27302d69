"""asyncio tasks as evidence: where the tasks that serve requests wait."""

from __future__ import annotations

from collections.abc import Sequence

from freezeframe.judge.correlate.facts import Connection, Facts
from freezeframe.judge.correlate.tasks import gathered, innermost
from freezeframe.judge.model import AsyncioTask, Evidence
from freezeframe.judge.verdicts._words import count, evidence, process

# Processes that it names: an engine may have many tokenizer workers.
_NAMED = 3
# Of vLLM: where a request's task waits for its tokens.
_OUTPUTS = "vllm/v1/engine/output_processor.py"


def tasks_of(facts: Facts, connections: Sequence[Connection]) -> tuple[Evidence, ...]:
    """One line on the tasks that serve the requests in flight on these connections; none where no task is known."""
    serving = _serving(facts, connections)
    place = gathered(task for _, task in serving)
    if place is None:
        return ()
    frame, number = place
    served = len({task.request_ref for _, task in serving})
    there = "all of them" if number == len(serving) else f"{number} of them"
    verb = "is" if served == 1 else "are"
    place_name = f"{frame.function} ({frame.file}:{frame.line})"
    pids = sorted({task.pid for _, task in serving})
    whose = ", ".join(process(facts, pid) for pid in pids[:_NAMED]) + (", ..." if len(pids) > _NAMED else "")
    text = f"{count(served, 'request')} {verb} in asyncio tasks of {whose}, {there} waiting in {place_name}"
    return (evidence(text, *(f"asyncio_tasks[{index}]" for index, _ in serving)),)


def handed_to_core(facts: Facts, waiting: Sequence[Connection]) -> bool:
    """Whether tasks of vLLM's HTTP process wait for what its core makes of these requests.

    There they come to once the request is on its way to the core: AsyncLLM.generate awaits `add_request`, then
    `RequestOutputCollector.get`. What became of it then they do not tell: its answer may have been lost as well.
    """
    place = gathered(task for _, task in _serving(facts, waiting))
    return place is not None and place[0].function.endswith("get") and place[0].file.endswith(_OUTPUTS)


def _serving(facts: Facts, connections: Sequence[Connection]) -> list[tuple[int, AsyncioTask]]:
    """The innermost tasks that serve the requests of these connections, with their positions."""
    ends = {
        (facts.snapshot.sockets[c.server_index].pid, facts.snapshot.sockets[c.server_index].fd)
        for c in connections
        if c.server_index is not None
    }
    requests = {f"requests[{i}]" for i, r in enumerate(facts.requests) if (r.pid, r.fd) in ends}
    return innermost([(i, task) for i, task in enumerate(facts.tasks) if task.request_ref in requests])
