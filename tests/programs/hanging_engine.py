"""An HTTP engine whose requests hang: hanging_engine.py KIND LOOP HTTP [middleware]; prints its port when it listens.

KIND "fastapi": /hang waits in its handler, /stream in the midst of its answer; with "middleware" both are behind
one that runs them in tasks of their own. KIND "aiohttp": /hang. KIND "streams": a server of asyncio streams.
"""
# ruff: noqa: PLC0415 - each kind needs other packages

import asyncio
import socket
import sys

KIND, LOOP = sys.argv[1:3]
HTTP = sys.argv[3]

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(128)


class Manager:
    """Stands for an engine's tokenizer manager."""

    async def wait_one_response(self, rid):
        await asyncio.Event().wait()


manager = Manager()


async def generate(rid):
    await manager.wait_one_response(rid)


def fastapi():
    import uvicorn
    from fastapi import FastAPI, Request
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.responses import StreamingResponse

    app = FastAPI()

    @app.post("/hang")
    async def hang(request: Request):
        await generate("engine-" + request.headers["x-request-id"])

    @app.post("/stream")
    async def stream(request: Request):
        async def tokens():
            yield b"data: 1\n\n"
            await generate("engine-" + request.headers["x-request-id"])

        return StreamingResponse(tokens())

    class Passes(BaseHTTPMiddleware):
        async def dispatch(self, request, call_next):
            return await call_next(request)

    if "middleware" in sys.argv:
        app.add_middleware(Passes)
    # Listening already: a request is answered, or hangs, as soon as the server runs.
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, loop=LOOP, http=HTTP, log_level="critical")
    uvicorn.Server(config).run(sockets=[listener])


def aiohttp():
    from aiohttp import web

    async def hang(request):
        await generate("engine-" + request.headers["x-request-id"])

    async def main():
        app = web.Application()
        app.router.add_post("/hang", hang)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        print(listener.getsockname()[1], flush=True)
        await asyncio.Event().wait()

    run(main())


def streams():
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        await generate("engine")
        writer.close()

    async def main():
        server = await asyncio.start_server(serve, sock=listener)
        print(listener.getsockname()[1], flush=True)
        await server.serve_forever()

    run(main())


def run(coroutine):
    if LOOP == "uvloop":
        import uvloop

        uvloop.install()
    asyncio.run(coroutine)


{"fastapi": fastapi, "aiohttp": aiohttp, "streams": streams}[KIND]()
