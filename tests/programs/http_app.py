"""A uvicorn server for the ledger's tests: `python http_app.py asyncio|uvloop [CERTIFICATE KEY]`; prints its port.

/fast answers at once, /chunked in three chunks, /stream sends an event every 20 ms for ever, /stall two and no more,
/hang never answers, /echo after it has read the body.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse

app = FastAPI()


@app.get("/fast")
async def fast() -> PlainTextResponse:
    return PlainTextResponse("hello")


@app.get("/chunked")
async def chunked() -> StreamingResponse:
    async def parts():
        for _ in range(3):
            yield b"part\n"
            await asyncio.sleep(0)

    return StreamingResponse(parts())


@app.post("/stream")
async def stream() -> StreamingResponse:
    async def events():
        while True:
            yield b"data: 10\n\n"
            await asyncio.sleep(0.02)

    return StreamingResponse(events(), media_type="text/event-stream")


@app.post("/stall")
async def stall() -> StreamingResponse:
    async def events():
        yield b"data: 1\n\n"
        yield b"data: 2\n\n"
        await asyncio.Event().wait()

    return StreamingResponse(events(), media_type="text/event-stream")


@app.post("/hang")
async def hang(request: Request) -> None:
    await request.body()
    await asyncio.Event().wait()


@app.post("/echo")
async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await request.body())}")


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    tls = {"ssl_certfile": sys.argv[2], "ssl_keyfile": sys.argv[3]} if len(sys.argv) > 2 else {}
    config = uvicorn.Config(app, loop=sys.argv[1], log_level="critical", timeout_keep_alive=60, **tls)
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
