"""An evaluation harness: N clients in one process, each asking one streamed chat completion after another.

Each client has its own connection and sends its own ``x-request-id``. The bed steers it through the control socket:
``run`` (ask one request after another), ``pause`` (finish the one in flight, then wait), ``cancel`` (drop what is in
flight and wait, and close every websocket), ``hang-up`` (close every idle connection), ``websockets`` (open some, say
something on each and keep them), ``status``. Once a second it prints a line of JSON with its counts, and one line for
every request that fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp
import bedlink

RETRY_PAUSE_S = 0.2
CHUNK_BYTES = 65536
# Of a client that does not read: what it leaves to the kernel.
RECEIVE_BUFFER_BYTES = 4096


@dataclass(kw_only=True)
class Client:
    """What one client is doing; times are CLOCK_MONOTONIC and wall-clock seconds."""

    index: int
    state: str = "parked"
    """Parked (nothing in flight), sent (no response headers yet), streaming or pausing (between two requests)."""
    request_id: str = ""
    sent_at_monotonic: float = 0.0
    sent_at_wall: float = 0.0
    last_byte_monotonic: float = 0.0
    bytes_in: int = 0
    completed: int = 0
    failed: int = 0
    last_error: str = ""


class Harness:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.clients = [Client(index=index) for index in range(args.clients)]
        self.running = asyncio.Event()
        self.requests: dict[int, asyncio.Task[None]] = {}
        self.sent = 0
        self.gap = args.gap
        self.tokens = args.tokens
        self.read = True
        self.websockets: list[aiohttp.ClientWebSocketResponse] = []

    def new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=self.args.pool, keepalive_timeout=300)
        timeout = aiohttp.ClientTimeout(total=None)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=CHUNK_BYTES)

    async def client_loop(self, client: Client) -> None:
        while True:
            await self.running.wait()
            failed = client.failed
            task = asyncio.create_task(self.ask(client), name=f"request-{client.index}")
            self.requests[client.index] = task
            with contextlib.suppress(asyncio.CancelledError):
                await task
            client.state = "pausing" if self.running.is_set() else "parked"
            if client.failed != failed:
                await asyncio.sleep(RETRY_PAUSE_S)
            else:
                await asyncio.sleep(self.gap)
            if not self.running.is_set():
                client.state = "parked"

    async def ask(self, client: Client) -> None:
        """One streamed chat completion."""
        self.sent += 1
        client.request_id = f"{self.args.name}-{client.index}-{self.sent}"
        client.state = "sent"
        client.sent_at_monotonic, client.sent_at_wall = time.monotonic(), time.time()
        client.bytes_in, client.last_byte_monotonic = 0, 0.0
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": f"question {client.index} of many"}],
            "max_tokens": self.tokens,
            "stream": True,
        }
        try:
            async with self.session.post(
                f"{self.args.url}/v1/chat/completions", json=body, headers={"x-request-id": client.request_id}
            ) as response:
                client.state = "streaming"
                if not self.read:
                    await stop_reading(response)
                while chunk := await response.content.readany():
                    client.bytes_in += len(chunk)
                    client.last_byte_monotonic = time.monotonic()
                response.raise_for_status()
            client.completed += 1
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            client.failed += 1
            client.last_error = f"{type(error).__name__}: {error}"
            print(json.dumps({"failed": client.request_id, "error": client.last_error}), flush=True)

    def status(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "running": self.running.is_set(),
            "in_flight": sum(1 for client in self.clients if client.state in ("sent", "streaming")),
            "completed": sum(client.completed for client in self.clients),
            "failed": sum(client.failed for client in self.clients),
            "websockets": len(self.websockets),
            "bytes_in": sum(client.bytes_in for client in self.clients),
            "clients": [asdict(client) for client in self.clients],
        }

    async def answer_control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = json.loads(await reader.readline())
        if request["do"] == "run":
            self.gap = request.get("gap", self.args.gap)
            self.tokens = request.get("tokens", self.args.tokens)
            self.read = request.get("read", True)
            self.running.set()
        elif request["do"] in ("pause", "cancel"):
            self.running.clear()
            if request["do"] == "cancel":
                for task in self.requests.values():
                    task.cancel()
                for websocket in self.websockets:
                    await websocket.close()
                self.websockets.clear()
        elif request["do"] == "hang-up":
            await self.session.close()
            self.session = self.new_session()
        elif request["do"] == "websockets":
            for _ in range(request["count"]):
                websocket = await self.session.ws_connect(request["url"])
                await websocket.receive()
                await websocket.send_str("hello")
                self.websockets.append(websocket)
        writer.write(json.dumps(self.status()).encode() + b"\n")
        await writer.drain()
        writer.close()

    async def report(self) -> None:
        while True:
            status = self.status()
            print(json.dumps({key: status[key] for key in ("in_flight", "completed", "failed")}), flush=True)
            await asyncio.sleep(1)

    async def run(self) -> None:
        self.session = self.new_session()
        await asyncio.start_unix_server(self.answer_control, self.args.control)
        await asyncio.gather(self.report(), *(self.client_loop(client) for client in self.clients))


async def stop_reading(response: aiohttp.ClientResponse) -> None:
    """Take no further byte of the answer, until the request is cancelled."""
    assert response.connection is not None
    transport = response.connection.transport
    assert isinstance(transport, asyncio.Transport)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    transport.pause_reading()
    await asyncio.Event().wait()


def parse(argv: list[str], *, clients: int, tokens: int, name: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--control", required=True, help="path of the control socket")
    parser.add_argument("--parent", type=int, required=True, help="end when this process has ended")
    parser.add_argument("--clients", type=int, default=clients)
    parser.add_argument("--tokens", type=int, default=tokens, help="tokens of one answer")
    parser.add_argument("--name", default=name, help="start of every request id")
    parser.add_argument("--pool", type=int, default=0, help="size of the connection pool, 0 for no limit")
    parser.add_argument("--gap", type=float, default=0.05, help="seconds between two requests of a client")
    return parser.parse_args(argv)


def main(args: argparse.Namespace) -> None:
    bedlink.die_with_parent(args.parent)
    asyncio.run(Harness(args).run())


if __name__ == "__main__":
    main(parse(sys.argv[1:], clients=30, tokens=16, name="eval"))
