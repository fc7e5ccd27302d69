"""A front of its own process with canned snapshots: prints a line when it serves, ends on SIGTERM."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

from freezeframe.agentd import front
from freezeframe.agentd.audit import Audit
from freezeframe.agentd.config import Config
from freezeframe.agentd.logs import Logger
from freezeframe.agentd.remote import Listener
from freezeframe.agentd.service import Parts
from freezeframe.agentd.store import Store
from tests.support.agent import CannedEngine, make_parts


@dataclass
class Canned:
    parts: Parts

    def on_bound(self) -> None:
        print("bound", flush=True)

    def on_ready(self) -> None:
        print("ready", flush=True)


@contextlib.asynccontextmanager
async def compose(
    config: Config, control_fd: int | None, logger: Logger, audit: Audit, listener: Listener | None
) -> AsyncIterator[Canned]:
    store = Store(os.path.join(config.state_dir, "snapshots"), config.store)
    yield Canned(make_parts(CannedEngine(), store, config.capture))


if __name__ == "__main__":
    os._exit(front.main(compose, sys.argv[1:]))
