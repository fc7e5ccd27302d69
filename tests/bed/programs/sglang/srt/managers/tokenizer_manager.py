"""The tokenizer manager: on the HTTP process's event loop, between the requests' waiters and the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import zmq
import zmq.asyncio
from fastapi import Request
from prometheus_client import Counter
from sglang.srt.faults import Faults
from sglang.srt.messages import (
    AbortReq,
    BatchStrOutput,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    TokenizedGenerateReqInput,
)
from sglang.srt.network import get_zmq_socket
from sglang.srt.server_args import PortArgs, ServerArgs

DISCONNECT_POLL_S = 4.0  # how often a waiting request looks whether its client is still there, as in SGLang
HEALTH_CHECK_TIMEOUT_S = 20.0


class EngineError(Exception):
    """The engine answers 500."""


class ClientGoneError(Exception):
    """Nobody waits for this reply any more."""


@dataclass(kw_only=True)
class ReqState:
    """A request between HTTP and the scheduler."""

    rid: str
    request_id: str
    since: float
    input_tokens: int
    out_list: list[tuple[str, int, bool]] = field(default_factory=list)
    event: asyncio.Event = field(default_factory=asyncio.Event)


class TokenizerManager:
    def __init__(self, args: ServerArgs, ports: PortArgs, faults: Faults, worker: int | None = None) -> None:
        """`worker` is the number of a tokenizer worker, which talks to its parent; None where there is one process."""
        self.args = args
        self.faults = faults
        self.worker = worker or 0
        context = zmq.asyncio.Context()
        receives_at, sends_to = ports.tokenizer_ipc_name, ports.scheduler_input_ipc_name
        if worker is not None:
            receives_at, sends_to = ports.tokenizer_of(worker), ports.tokenizer_worker_ipc_name
        self.recv_from_detokenizer = get_zmq_socket(context, zmq.PULL, receives_at, bind=True)
        self.send_to_scheduler = get_zmq_socket(context, zmq.PUSH, sends_to, bind=worker is None)
        self.rid_to_state: dict[str, ReqState] = {}
        self.last_receive_tstamp = 0.0
        self.handle_loop_task: asyncio.Task[None] | None = None
        self.counter = itertools.count()
        self.internal_states: list[asyncio.Future[dict[str, object]]] = []
        labels = {"model_name": args.served_model_name, "engine_type": args.engine_type}

        def counter(name: str) -> Any:
            return Counter(f"sglang:{name}", name, list(labels)).labels(**labels)

        self.prompt_tokens_total = counter("prompt_tokens_total")
        self.generation_tokens_total = counter("generation_tokens_total")
        self.num_requests_total = counter("num_requests_total")
        self.num_aborted_requests_total = counter("num_aborted_requests_total")

    def auto_create_handle_loop(self) -> None:
        if self.handle_loop_task is None:
            self.handle_loop_task = asyncio.get_running_loop().create_task(self.handle_loop())

    async def handle_loop(self) -> None:
        while True:
            received = await self.recv_from_detokenizer.recv_pyobj()
            self.last_receive_tstamp = time.monotonic()
            if isinstance(received, GetInternalStateReqOutput):
                for waiter in self.internal_states:
                    if not waiter.done():
                        waiter.set_result(received.internal_state)
                self.internal_states.clear()
            else:
                self._handle_batch_output(received)

    def _handle_batch_output(self, batch: BatchStrOutput) -> None:
        for rid, text, count, finished in zip(
            batch.rids, batch.output_strs, batch.completion_tokens, batch.finished, strict=True
        ):
            state = self.rid_to_state.get(rid)
            if state is not None:
                state.out_list.append((text, count, finished))
                state.event.set()

    async def generate_request(self, body: dict[str, Any], request: Request) -> AsyncIterator[tuple[str, int, bool]]:
        """Yield (text, tokens so far, finished) of one request.

        Raises:
            EngineError: a fault answers 500.
            ClientGoneError: the client left before the reply was complete; the scheduler has been told.
        """
        self.auto_create_handle_loop()
        state = ReqState(
            rid=f"{self.worker}-{self.args.engine_type}-{next(self.counter)}",
            request_id=request.headers.get("x-request-id", ""),
            since=time.monotonic(),
            input_tokens=len(str(body.get("messages") or body.get("text") or "").split()) + 1,
        )
        self.rid_to_state[state.rid] = state
        sent = done = False
        try:
            await self._meet_fault(body)
            sent = True
            await self._send_one_request(state, body)
            async for piece in self._wait_one_response(state, request):
                yield piece
                done = done or piece[2]
        finally:
            del self.rid_to_state[state.rid]
            if sent and not done:
                self.num_aborted_requests_total.inc()
                self.send_to_scheduler.send_pyobj(AbortReq(rid=state.rid))

    async def _meet_fault(self, body: dict[str, Any]) -> None:
        fault = self.faults.current
        if fault == "error" and body.get("bootstrap_room") is not None:
            raise EngineError("injected: this engine refuses every disaggregated request")
        if fault == "silent":
            await self.faults.hand_to_nobody()
            # Then served as usual: an error would count in the router's circuit breaker if it has not let go yet.
        self.faults.block_event_loop()

    async def _send_one_request(self, state: ReqState, body: dict[str, Any]) -> None:
        # sglang-router 0.3.2 rewrites max_tokens to max_completion_tokens
        sampling = body.get("sampling_params") or {}
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or sampling.get("max_new_tokens") or 16
        await self.send_to_scheduler.send_pyobj(
            TokenizedGenerateReqInput(
                rid=state.rid,
                input_tokens=state.input_tokens,
                max_new_tokens=int(wanted),
                bootstrap_host=body.get("bootstrap_host"),
                bootstrap_port=body.get("bootstrap_port"),
                bootstrap_room=body.get("bootstrap_room"),
            )
        )

    async def _wait_one_response(self, state: ReqState, request: Request) -> AsyncIterator[tuple[str, int, bool]]:
        while True:
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
                await asyncio.wait_for(state.event.wait(), timeout=DISCONNECT_POLL_S)
            state.event.clear()
            if not state.out_list and await request.is_disconnected():
                raise ClientGoneError
            pieces, state.out_list = state.out_list, []
            for piece in pieces:
                if piece[2]:
                    self.prompt_tokens_total.inc(state.input_tokens)
                    self.generation_tokens_total.inc(piece[1])
                    self.num_requests_total.inc()
                yield piece
                if piece[2]:
                    return

    def look_for_gone_clients(self) -> None:
        """Wake every waiting request, so that those whose client has left end now and not at their next poll."""
        for state in self.rid_to_state.values():
            state.event.set()

    async def get_internal_state(self) -> dict[str, object]:
        """Ask the scheduler; has no timeout, as in SGLang."""
        self.auto_create_handle_loop()
        answer: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        self.internal_states.append(answer)
        await self.send_to_scheduler.send_pyobj(GetInternalStateReq())
        return await answer

    async def health(self) -> bool:
        """Whether anything came back within 20 s of a one-token request."""
        self.auto_create_handle_loop()
        asked = time.monotonic()
        rid = f"{self.worker}-HEALTH_CHECK_{next(self.counter)}"
        await self.send_to_scheduler.send_pyobj(TokenizedGenerateReqInput(rid=rid, input_tokens=1, max_new_tokens=1))
        while time.monotonic() - asked < HEALTH_CHECK_TIMEOUT_S:
            if self.last_receive_tstamp > asked:
                return True
            await asyncio.sleep(0.05)
        await self.send_to_scheduler.send_pyobj(AbortReq(rid=rid))
        return False
