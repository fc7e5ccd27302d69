"""A client that keeps a number of long streamed answers going and counts what it gets itself.

Ten times a second it prints a line of JSON: the wall-clock time, and the bytes and tokens that it has got so far. Bytes
are those of its sockets, heads and chunk frames too; a token is a server-sent event with content, whether or not it
came in a read of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from urllib.parse import urlsplit

import bedlink

PERIOD_S = 0.1
# Of one that sips: so many bytes at a time, with a pause between them.
SIP_BYTES, SIP_PAUSE_S = 256, 0.2
EVENT = b'data: {"id"'


class Counts:
    def __init__(self) -> None:
        self.bytes = 0
        self.tokens = 0


async def ask_for_ever(url: str, request_id: str, counts: Counts, args: argparse.Namespace) -> None:
    """One streamed answer after another on one connection each."""
    tokens = args.tokens
    most = SIP_BYTES if args.sip else 65536
    address = urlsplit(url)
    body = json.dumps(
        {"model": "tiny", "messages": [{"role": "user", "content": "count"}], "max_tokens": tokens, "stream": True}
    ).encode()
    number = 0
    while True:
        number += 1
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address.netloc}\r\nx-request-id: {request_id}-{number}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=most)
        writer.write(head.encode() + body)
        rest = b""
        while got := await reader.read(most):
            counts.bytes += len(got)
            counts.tokens += (rest + got).count(EVENT)
            # What may be the begin of an event; no whole one fits in.
            rest = (rest + got)[1 - len(EVENT) :]
            if args.sip:
                await asyncio.sleep(SIP_PAUSE_S)
        writer.close()


async def report(counts: Counts) -> None:
    while True:
        print(json.dumps({"at": time.time(), "bytes": counts.bytes, "tokens": counts.tokens}), flush=True)
        await asyncio.sleep(PERIOD_S)


async def run(args: argparse.Namespace) -> None:
    counts = Counts()
    asking = (ask_for_ever(args.url, f"{args.name}-{i}", counts, args) for i in range(args.streams))
    await asyncio.gather(report(counts), *asking)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--name", required=True, help="start of every request id")
    parser.add_argument("--streams", type=int, required=True, help="answers at a time")
    parser.add_argument("--tokens", type=int, default=100_000, help="tokens of one answer")
    parser.add_argument("--sip", action="store_true", help="read slowly")
    args = parser.parse_args(sys.argv[1:])
    bedlink.die_with_parent(os.getppid())
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
