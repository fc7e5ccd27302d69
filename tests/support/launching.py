"""A launcher without a supervisor, as a child of the test, and the workers that it runs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator

from freezeframe.agentd import channel
from freezeframe.agentd.channel import INTRODUCTION
from freezeframe.agentd.workers import Workers


@contextlib.asynccontextmanager
async def real_workers(*program: str) -> AsyncIterator[Workers]:
    """Workers with the agent's own collectors; `program` is another launcher to run."""
    control, theirs = channel.pair()
    process = subprocess.Popen(
        [sys.executable, *(program or ("-m", "freezeframe.agentd.launcher")), str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
    )
    theirs.close()
    front, back = channel.pair()
    channel.send(control, INTRODUCTION, (back.fileno(),))
    back.close()
    workers = Workers()
    workers.attach(front)
    try:
        yield workers
    finally:
        workers.detach()
        control.close()
        assert process.wait(10) == 0
