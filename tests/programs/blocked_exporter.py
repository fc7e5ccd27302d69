"""An engine's exporter whose event loop is blocked: real prometheus_client series of several processes, no answer.

Prints a JSON line once its HTTP loop is blocked: port, and pid and last time of writing of the scheduler, a child that
writes its gauges again for each line on standard input and prints when it did.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import sys
import time
from multiprocessing.connection import Connection


def _scheduler(commands: Connection) -> None:
    from prometheus_client import Counter, Gauge  # noqa: PLC0415 - its files are named after the process

    labels = {"tp_rank": "0", "tenant": "secret"}
    running = Gauge("sglang:num_running_reqs", "r", list(labels), multiprocess_mode="mostrecent").labels(**labels)
    Gauge("sglang:num_queue_reqs", "never set", multiprocess_mode="mostrecent")
    tokens = Counter("sglang:generation_tokens", "t", ["tp_rank"]).labels("0")
    more = Gauge("sglang:num_paused_reqs", "p", ["dp_rank"], multiprocess_mode="mostrecent")
    grown = 0
    while True:
        command = commands.recv()
        if command["do"] == "write":
            before = time.time()
            running.set(command["running"])
            tokens.inc(7)
            commands.send((before, time.time()))
        elif command["do"] == "grow":
            for each in range(grown, grown + command["series"]):
                more.labels(str(each)).set(each)
            grown += command["series"]
            commands.send((time.time(), time.time()))


def main() -> None:
    from prometheus_client import Gauge  # noqa: PLC0415

    active = Gauge("sglang:http_requests_active", "a", ["method"], multiprocess_mode="livesum")
    active.labels("POST").set(30)
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=_scheduler, args=(there,), daemon=True)
    child.start()

    async def serve() -> None:
        server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        print(json.dumps({"port": port, "scheduler": child.pid}), flush=True)
        # The loop never runs again.
        for line in sys.stdin:
            here.send(json.loads(line))
            print(json.dumps(here.recv()), flush=True)

    asyncio.run(serve())


if __name__ == "__main__":
    socket.setdefaulttimeout(5)
    main()
