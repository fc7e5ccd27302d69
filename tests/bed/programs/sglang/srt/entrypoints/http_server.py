"""The HTTP process: uvicorn on uvloop, the endpoints that routers ask for, and the start of the other two processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from types import FrameType
from typing import Any

import bedlink
import setproctitle
import uvicorn
import uvloop
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from sglang.srt.entrypoints.http_metrics import TrackResponse
from sglang.srt.faults import Faults
from sglang.srt.managers.data_parallel_controller import run_data_parallel_controller_process
from sglang.srt.managers.detokenizer_manager import run_detokenizer_process
from sglang.srt.managers.multi_tokenizer import MultiTokenizerRouter
from sglang.srt.managers.scheduler import run_scheduler_process
from sglang.srt.managers.tokenizer_manager import ClientGoneError, EngineError, TokenizerManager
from sglang.srt.server_args import PortArgs, ServerArgs

KEEP_ALIVE_S = 5
BACKLOG = 2048


class Server(uvicorn.Server):
    """A server whose accepting can be switched off and on while its socket goes on listening."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket) -> None:
        super().__init__(config)
        self.listener = listener
        self.accepting = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the process ends on SIGTERM by its own handler, whatever its event loop is doing

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[self.listener.dup()])
        self.accepting = True

    def used_connections(self) -> int:
        """How many connections have carried a request; a router's pool opens some that never do."""
        connections = list(self.server_state.connections)
        return sum(getattr(connection, "cycle", None) is not None for connection in connections)  # no websocket has one

    def stop_accepting(self) -> None:
        """Leave new connections in the kernel's backlog and close the idle ones."""
        for server in self.servers:
            server.close()
        self.servers.clear()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        self.accepting = False

    async def start_accepting(self) -> None:
        make: Any = self.config.http_protocol_class

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = make(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made

        loop = asyncio.get_running_loop()
        self.servers.append(await loop.create_server(protocol, sock=self.listener.dup(), backlog=BACKLOG))
        self.accepting = True


def build_app(args: ServerArgs, manager: TokenizerManager) -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.add_middleware(TrackResponse)
    # A local tokenizer folder: with any other string the router asks a model hub.
    info: dict[str, Any] = {
        "model_path": args.model_path,
        "tokenizer_path": args.model_path,
        "served_model_name": args.served_model_name,
        "is_generation": True,
        "tp_size": 1,
        "dp_size": 1,
        "max_running_requests": 256,
        "max_total_num_tokens": 100000,
        "context_length": 8192,
        "disaggregation_mode": args.disaggregation_mode,
        "disaggregation_bootstrap_port": args.disaggregation_bootstrap_port,
        "load_balance_method": "round_robin",
        "version": "0.5.13+bed",
        "model_type": "qwen3",
        "weight_version": "default",
        "preferred_sampling_params": None,
    }

    async def health() -> Response:
        return Response(status_code=200 if await manager.health() else 503)

    async def model_info() -> dict[str, Any]:
        return info

    async def server_info() -> dict[str, Any]:
        return {**info, "internal_states": [await manager.get_internal_state()]}

    async def models() -> dict[str, Any]:
        model = {
            "id": args.served_model_name,
            "object": "model",
            "created": 0,
            "owned_by": "sglang",
            "max_model_len": 8192,
        }
        return {"object": "list", "data": [model]}

    async def metrics() -> Response:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return PlainTextResponse(generate_latest(registry))

    async def loads() -> dict[str, Any]:
        values = {"num_running_reqs": 0.0, "num_queue_reqs": 0.0}
        registry = CollectorRegistry()
        for family in MultiProcessCollector(registry).collect():
            name = family.name.removeprefix("sglang:")
            if name in values:
                values[name] = sum(sample.value for sample in family.samples)
        load = {"dp_rank": 0, "num_reqs": int(sum(values.values())), "num_waiting_reqs": int(values["num_queue_reqs"])}
        return {"timestamp": time.time(), "loads": [load]}

    async def chat(request: Request) -> Response:
        return await answer_generation(args, manager, request, chat=True)

    async def generate(request: Request) -> Response:
        return await answer_generation(args, manager, request, chat=False)

    async def realtime(websocket: WebSocket) -> None:
        """A session that lasts for as long as its client wants, in which nobody owes anybody anything."""
        await websocket.accept()
        await websocket.send_json({"type": "session.created"})
        async for _ in websocket.iter_text():
            pass

    gets = {
        "/health": health,
        "/health_generate": health,
        "/model_info": model_info,
        "/get_model_info": model_info,
        "/server_info": server_info,
        "/get_server_info": server_info,
        "/v1/models": models,
        "/v1/loads": loads,
        "/metrics": metrics,
    }
    for path, handler in gets.items():
        app.add_api_route(path, handler, methods=["GET"], response_model=None)
    app.add_api_route("/v1/chat/completions", chat, methods=["POST"], response_model=None)
    app.add_api_route("/v1/completions", chat, methods=["POST"], response_model=None)
    app.add_api_websocket_route("/v1/realtime", realtime)
    app.add_api_route("/generate", generate, methods=["POST"], response_model=None)
    return app


async def answer_generation(args: ServerArgs, manager: TokenizerManager, request: Request, *, chat: bool) -> Response:
    """Answer a generation; a stream's headers go out with its first token, as in SGLang."""
    body = await request.json()
    pieces = manager.generate_request(body, request)

    def event(text: str, count: int, *, finished: bool) -> dict[str, Any]:
        if not chat:
            return {
                "text": text,
                "meta_info": {"completion_tokens": count, "finish_reason": "stop" if finished else None},
            }
        return {
            "id": "chatcmpl-bed",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": args.served_model_name,
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop" if finished else None}],
        }

    async def stream(first: tuple[str, int, bool]) -> AsyncIterator[str]:
        yield f"data: {json.dumps(event(first[0], first[1], finished=first[2]))}\n\n"
        with contextlib.suppress(ClientGoneError):
            async for text, count, finished in pieces:
                yield f"data: {json.dumps(event(text, count, finished=finished))}\n\n"
        yield "data: [DONE]\n\n"

    try:
        first = await anext(pieces)
        if body.get("stream"):
            return StreamingResponse(stream(first), media_type="text/event-stream")
        texts = [first[0]]
        count = first[1]
        async for text, so_far, _ in pieces:
            texts.append(text)
            count = so_far
    except EngineError as error:
        return JSONResponse({"error": {"message": str(error), "code": 500}}, status_code=500)
    except ClientGoneError:
        return Response(status_code=499)
    if not chat:
        return JSONResponse(event("".join(texts), count, finished=True))
    choice = {"index": 0, "message": {"role": "assistant", "content": "".join(texts)}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count}
    return JSONResponse(
        {
            "id": "chatcmpl-bed",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": args.served_model_name,
            "choices": [choice],
            "usage": usage,
        }
    )


def start_children(
    args: ServerArgs, ports: PortArgs
) -> tuple[list[multiprocessing.process.BaseProcess], dict[str, Any]]:
    """Start schedulers and detokenizer; returns once the schedulers are ready, with everybody's pids."""
    spawn = multiprocessing.get_context("spawn")
    reader, writer = spawn.Pipe(duplex=False)
    several = args.dp_size > 1
    run = run_data_parallel_controller_process if several else run_scheduler_process
    first = spawn.Process(target=run, args=(args, ports, os.getpid(), writer))
    detokenizer = spawn.Process(target=run_detokenizer_process, args=(ports, os.getpid()))
    first.start()
    detokenizer.start()
    writer.close()
    schedulers = reader.recv()
    pids = {
        "http": os.getpid(),
        "scheduler": schedulers[0],
        "detokenizer": detokenizer.pid,
        "schedulers": schedulers,
        "controller": first.pid if several else None,
    }
    return [first, detokenizer], pids


def launch_server(args: ServerArgs) -> None:
    """Run the engine until SIGTERM."""
    listener = socket.create_server((args.host, args.port), backlog=BACKLOG)
    ports = PortArgs.init_new()
    children, pids = start_children(args, ports)
    if args.tokenizer_worker_num > 1:
        workers = start_tokenizer_workers(args, ports, listener)
        children += workers
        pids["workers"] = [worker.pid for worker in workers]

    def end(_signum: int, _frame: FrameType | None) -> None:
        for child in children:
            child.kill()
        for child in children:
            child.join(2)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    if args.tokenizer_worker_num > 1:
        bedlink.serve_control(args.bed_control, partial(ask_workers, args, pids))
        supervise(children)
    else:
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve(args, ports, listener, pids, args.bed_control))


def start_tokenizer_workers(
    args: ServerArgs, ports: PortArgs, listener: socket.socket
) -> list[multiprocessing.process.BaseProcess]:
    router = MultiTokenizerRouter(ports, args.tokenizer_worker_num)
    threading.Thread(target=router.event_loop, name="multi-tokenizer-router", daemon=True).start()
    spawn = multiprocessing.get_context("spawn")
    workers: list[multiprocessing.process.BaseProcess] = []
    for number in range(args.tokenizer_worker_num):
        worker = spawn.Process(target=run_tokenizer_worker, args=(args, ports, listener, os.getpid(), number))
        worker.start()
        workers.append(worker)
    for number in range(args.tokenizer_worker_num):
        while not os.path.exists(worker_control(args, number)):
            time.sleep(0.02)
    return workers


def run_tokenizer_worker(args: ServerArgs, ports: PortArgs, listener: socket.socket, parent: int, number: int) -> None:
    bedlink.die_with_parent(parent)
    setproctitle.setproctitle(f"sglang::tokenizer_worker:{os.getpid()}")
    uvloop.run(serve(args, ports, listener, {}, worker_control(args, number), number))


def worker_control(args: ServerArgs, number: int) -> str:
    return f"{args.bed_control}.worker{number}"


def ask_workers(args: ServerArgs, pids: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Pass a request on to the tokenizer workers, or to that whose number it has, and sum up what all of them say."""
    numbers = range(args.tokenizer_worker_num)
    asked = [request["worker"]] if "worker" in request else numbers
    for number in asked:
        bedlink.ask(worker_control(args, number), request)
    replies = [bedlink.ask(worker_control(args, number), {"do": "status"}) for number in numbers]
    return {
        "fault": next((reply["fault"] for reply in replies if reply["fault"]), None),
        "in_flight": [entry for reply in replies for entry in reply["in_flight"]],
        "silenced": sum(reply["silenced"] for reply in replies),
        "blocked": any(reply["blocked"] for reply in replies),
        "accepting": all(reply["accepting"] for reply in replies),
        "connections": sum(reply["connections"] for reply in replies),
        "pids": pids,
    }


def supervise(children: list[multiprocessing.process.BaseProcess]) -> None:
    """Look after them, as uvicorn's supervisor of several workers does: twice a second, and nothing else."""
    stop = threading.Event()
    while not stop.wait(0.5):
        for child in children:
            child.is_alive()


async def serve(
    args: ServerArgs,
    ports: PortArgs,
    listener: socket.socket,
    pids: dict[str, Any],
    control: str,
    worker: int | None = None,
) -> None:
    loop = asyncio.get_running_loop()
    faults = Faults()
    manager = TokenizerManager(args, ports, faults, worker)
    config = uvicorn.Config(build_app(args, manager), backlog=BACKLOG, timeout_keep_alive=KEEP_ALIVE_S, lifespan="off")
    config.load()
    server = Server(config, listener)

    def status() -> dict[str, Any]:
        now = time.monotonic()
        in_flight = [
            {"rid": state.rid, "request_id": state.request_id, "age_s": now - state.since}
            for state in list(manager.rid_to_state.values())
        ]
        return {
            "fault": faults.current,
            "in_flight": in_flight,
            "silenced": faults.silenced,
            "blocked": faults.blocked,
            "accepting": server.accepting,
            "connections": server.used_connections(),
            "pids": pids,
        }

    def answer_control(request: dict[str, Any]) -> dict[str, Any]:
        """Answer ``{"do": ...}``: "set" with a "fault", "clear", "look" (for clients that left) or "status"."""
        if request["do"] == "set":
            faults.set(request["fault"], request.get("path", ""))
            if faults.current == "not-accepting":
                loop.call_soon_threadsafe(server.stop_accepting)
        elif request["do"] == "clear":
            faults.clear()
            if not server.accepting:
                asyncio.run_coroutine_threadsafe(server.start_accepting(), loop).result(5)
        elif request["do"] == "look":
            loop.call_soon_threadsafe(manager.look_for_gone_clients)
        return status()

    faults.bind_loop(loop)
    bedlink.serve_control(control, answer_control)
    await server.serve()
