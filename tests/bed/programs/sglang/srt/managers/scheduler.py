"""The scheduler process: queues, batches, and the handshake between a prefill and a decode engine.

One round of a loop receives, admits, runs a batch (a sleep of the batch's length) and hands tokens to the
detokenizer. Prefill side: a request waits in the bootstrap queue until the decode scheduler has asked for its room;
decode side: a request waits in the transfer queue until the prefill scheduler says that its room is done. So a decode
leg that was never opened leaves the prefill leg waiting for ever, as in the real engine.

Its own wedges, set through the control socket: ``hold`` (the waiting queue is never admitted), ``livelock`` (it is
looked through without end, and nothing is admitted), ``spin`` (the idle loop burns a core), ``prefill_s`` (seconds that
a prefill batch takes, computed in chunks that each count tokens), ``step_s`` (seconds that a decode batch takes),
``stall_after`` (tokens after which a decode batch never ends), ``deaf`` (what a decode scheduler asks for is not read);
and ``publish`` (its load is written to shared memory, too).
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import bedlink
import setproctitle
import zmq
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.managers.scheduler_metrics import SchedulerMetricsCollector
from sglang.srt.messages import (
    AbortReq,
    BatchTokenIDOutput,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    TokenizedGenerateReqInput,
)
from sglang.srt.network import get_zmq_socket
from sglang.srt.server_args import PortArgs, ServerArgs

MAX_RUNNING_REQUESTS = 256
DECODE_LOG_INTERVAL = 40  # batches between two log lines, as in SGLang
IDLE_REFRESH_S = 30.0  # gauges are written this often while fully idle, as in SGLang
PREFILL_CHUNK_S = 0.5


@dataclass(kw_only=True)
class Req:
    input: TokenizedGenerateReqInput
    output_tokens: int = 0

    @property
    def finished(self) -> bool:
        return self.output_tokens >= self.input.max_new_tokens


class IdleSleeper:
    """Wait for input instead of spinning (``--sleep-on-idle``)."""

    def __init__(self, sockets: list[Any]) -> None:
        self.poller = zmq.Poller()
        for socket in sockets:
            self.poller.register(socket, zmq.POLLIN)

    def maybe_sleep(self, timeout_ms: int) -> None:
        self.poller.poll(timeout_ms)


class Scheduler:
    def __init__(self, args: ServerArgs, ports: PortArgs, dp_rank: int | None) -> None:
        self.args = args
        context = zmq.Context()
        self.recv_from_tokenizer = get_zmq_socket(context, zmq.PULL, ports.scheduler_input_ipc_name, bind=False)
        self.send_to_tokenizer = get_zmq_socket(context, zmq.PUSH, ports.tokenizer_ipc_name, bind=False)
        self.send_to_detokenizer = get_zmq_socket(context, zmq.PUSH, ports.detokenizer_ipc_name, bind=False)
        self.context = context
        sockets = [self.recv_from_tokenizer]
        self.rooms_socket: Any | None = None
        if args.disaggregation_mode == "prefill":
            address = f"tcp://{args.host}:{args.disaggregation_bootstrap_port}"
            self.rooms_socket = get_zmq_socket(context, zmq.ROUTER, address, bind=True)
            sockets.append(self.rooms_socket)
        self.sleeper = IdleSleeper(sockets)
        self.prefill_sockets: dict[tuple[str, int], Any] = {}  # decode: one per prefill engine
        self.rooms_asked: dict[int, bytes] = {}  # prefill: room -> the decode scheduler that asked for it
        self.rooms_done: set[int] = set()  # decode: rooms whose prefill has ended
        self.bootstrap_queue: list[Req] = []
        self.transfer_queue: list[Req] = []
        self.waiting_queue: list[Req] = []
        self.running_batch: list[Req] = []
        self.decode_batches = 0
        self.decode_tokens = 0
        self.decode_log_at = time.monotonic()
        self.metrics = SchedulerMetricsCollector(
            {
                "model_name": args.served_model_name,
                "engine_type": args.engine_type,
                "tp_rank": "0",
                "pp_rank": "0",
                "moe_ep_rank": "0",
                **({} if dp_rank is None else {"dp_rank": str(dp_rank)}),
            }
        )
        self.hold = False
        self.livelock = False
        self.spin = not args.sleep_on_idle
        self.prefill_s = 0.0
        self.step_s = 0.0
        self.stall_after = 0
        self.stalled = False
        self.deaf = False
        self.load: Any = None
        self.released = threading.Event()
        self.loops = itertools.count()
        self.last_loop = 0

    # -- the loops, named as SGLang names them ---------------------------------------------------------------

    def event_loop_normal(self) -> None:
        while True:
            self.process_input_requests(self.recv_requests())
            self.run_one_round()

    def event_loop_normal_disagg_prefill(self) -> None:
        while True:
            self.process_input_requests(self.recv_requests())
            self.pop_bootstrapped()
            self.run_one_round()

    def event_loop_normal_disagg_decode(self) -> None:
        while True:
            self.process_input_requests(self.recv_requests())
            self.process_decode_queue()
            self.run_one_round()

    def run_one_round(self) -> None:
        self.last_loop = next(self.loops)
        if self.load is not None:
            self.load.write(self.args.disaggregation_mode, self.queues())
        batch = self.get_next_batch_to_run()
        if batch is not None:
            self.run_batch(batch)
            self.process_batch_result(batch)
        else:
            self.on_idle()

    # -- input -----------------------------------------------------------------------------------------------

    def recv_requests(self) -> list[Any]:
        received = []
        while True:
            try:
                received.append(self.recv_from_tokenizer.recv_pyobj(zmq.NOBLOCK))
            except zmq.Again:
                return received

    def process_input_requests(self, received: list[Any]) -> None:
        for message in received:
            if isinstance(message, TokenizedGenerateReqInput):
                self.handle_generate_request(Req(input=message))
            elif isinstance(message, AbortReq):
                self.abort_request(message.rid)
            elif isinstance(message, GetInternalStateReq):
                self.send_to_tokenizer.send_pyobj(GetInternalStateReqOutput(internal_state=self.queues()))

    def handle_generate_request(self, req: Req) -> None:
        room = req.input.bootstrap_room
        if room is None or self.args.disaggregation_mode == "null":
            self.waiting_queue.append(req)
        elif self.args.disaggregation_mode == "prefill":
            self.bootstrap_queue.append(req)
        else:
            self.transfer_queue.append(req)
            self._prefill_socket(req).send_json(room)

    def abort_request(self, rid: str) -> None:
        for queue in (self.bootstrap_queue, self.transfer_queue, self.waiting_queue, self.running_batch):
            queue[:] = [req for req in queue if req.input.rid != rid]

    # -- disaggregation --------------------------------------------------------------------------------------

    def _prefill_socket(self, req: Req) -> Any:
        key = (req.input.bootstrap_host or "127.0.0.1", req.input.bootstrap_port or 8998)
        if key not in self.prefill_sockets:
            socket = get_zmq_socket(self.context, zmq.DEALER, f"tcp://{key[0]}:{key[1]}", bind=False)
            self.prefill_sockets[key] = socket
            self.sleeper.poller.register(socket, zmq.POLLIN)
        return self.prefill_sockets[key]

    def pop_bootstrapped(self) -> None:
        """Prefill: what a decode scheduler has asked for may be computed."""
        assert self.rooms_socket is not None
        while not self.deaf:
            try:
                peer, room = self.rooms_socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self.rooms_asked[int(room)] = peer
        ready = [req for req in self.bootstrap_queue if req.input.bootstrap_room in self.rooms_asked]
        self.waiting_queue += ready
        self.bootstrap_queue[:] = [req for req in self.bootstrap_queue if req not in ready]

    def process_decode_queue(self) -> None:
        """Decode: what has been transferred may run."""
        for socket in self.prefill_sockets.values():
            while True:
                try:
                    self.rooms_done.add(int(socket.recv(zmq.NOBLOCK)))
                except zmq.Again:
                    break
        ready = [req for req in self.transfer_queue if req.input.bootstrap_room in self.rooms_done]
        self.waiting_queue += ready
        self.transfer_queue[:] = [req for req in self.transfer_queue if req not in ready]
        self.rooms_done.difference_update(req.input.bootstrap_room for req in ready)

    # -- batches ---------------------------------------------------------------------------------------------

    def get_next_batch_to_run(self) -> tuple[str, list[Req]] | None:
        if self.livelock and self.waiting_queue:
            return self._get_new_batch_prefill_raw()
        if self.waiting_queue and not self.hold:
            admitted = self.waiting_queue[: MAX_RUNNING_REQUESTS - len(self.running_batch)]
            del self.waiting_queue[: len(admitted)]
            if admitted:
                return "prefill", admitted
        if self.running_batch:
            return "decode", self.running_batch
        return None

    def _get_new_batch_prefill_raw(self) -> tuple[str, list[Req]] | None:
        adder = PrefillAdder(self.waiting_queue, rem_total_tokens=0)
        admitted = [req for req in self.waiting_queue if adder.add_one_req(max(1, req.input.input_tokens))]
        return ("prefill", admitted) if admitted else None

    def run_batch(self, batch: tuple[str, list[Req]]) -> None:
        kind, reqs = batch
        if kind == "decode":
            self.forward_decode(reqs)
        elif self.args.disaggregation_mode == "decode" and reqs[0].input.bootstrap_room is not None:
            return  # its keys and values came from the prefill engine
        else:
            self.forward_extend(reqs)

    def forward_decode(self, reqs: list[Req]) -> None:
        if self.stall_after and min(req.output_tokens for req in reqs) >= self.stall_after:
            self.stalled = True
            self.released.wait()
            self.stalled = False
        elif self.step_s:
            self.released.wait(self.step_s)
        else:
            time.sleep(self.args.decode_step_s + 0.001 * len(reqs))

    def forward_extend(self, reqs: list[Req]) -> None:
        wanted = self.prefill_s
        seconds = wanted or 0.002 + 0.0005 * len(reqs)
        tokens = sum(req.input.input_tokens for req in reqs)
        chunks = max(1, round(seconds / PREFILL_CHUNK_S))
        for _ in range(chunks):
            if self.prefill_s != wanted:
                return  # the lookalike has been left
            time.sleep(seconds / chunks)
            self.log_prefill_stats(reqs, max(1, tokens // chunks))

    def process_batch_result(self, batch: tuple[str, list[Req]]) -> None:
        kind, reqs = batch
        for req in reqs:
            req.output_tokens += 1
        self.send_to_detokenizer.send_pyobj(
            BatchTokenIDOutput(
                rids=[req.input.rid for req in reqs],
                completion_tokens=[req.output_tokens for req in reqs],
                finished=[req.finished or self.args.disaggregation_mode == "prefill" for req in reqs],
            )
        )
        if kind == "prefill" and self.args.disaggregation_mode == "prefill":
            for req in reqs:
                peer = self.rooms_asked.pop(req.input.bootstrap_room or -1, None)
                if peer is not None and self.rooms_socket is not None:
                    self.rooms_socket.send_multipart([peer, b"%d" % (req.input.bootstrap_room or 0)])
            return
        if kind == "prefill":
            self.running_batch += [req for req in reqs if not req.finished]
            return
        self.running_batch = [req for req in reqs if not req.finished]
        self.decode_batches += 1
        self.decode_tokens += len(reqs)
        if self.decode_batches % DECODE_LOG_INTERVAL == 0:
            self.log_decode_stats()

    # -- idle, log lines, gauges -----------------------------------------------------------------------------

    def on_idle(self) -> None:
        if self.bootstrap_queue or self.transfer_queue or self.waiting_queue:
            # The real loop spins here; on a small machine that would starve the others. Gauges are not refreshed in
            # this state, as in
            # SGLang 0.5.13, except that a scheduler that holds its waiting queue goes on to report it.
            if self.waiting_queue and time.monotonic() - self.metrics.last_log_time > 1.0:
                self.metrics.log_stats(self.queues())
            if not (self.spin or self.livelock):
                self.sleeper.maybe_sleep(20)
            return
        if time.monotonic() - self.metrics.last_log_time > IDLE_REFRESH_S:
            self.metrics.log_stats(self.queues())
        if not self.spin:
            self.sleeper.maybe_sleep(1000)

    def queues(self) -> dict[str, Any]:
        return {
            "num_running_reqs": len(self.running_batch),
            "num_queue_reqs": len(self.waiting_queue),
            "num_used_tokens": sum(r.input.input_tokens + r.output_tokens for r in self.running_batch),
            "num_prefill_bootstrap_queue_reqs": len(self.bootstrap_queue),
            "num_decode_transfer_queue_reqs": len(self.transfer_queue),
        }

    def log_prefill_stats(self, reqs: list[Req], tokens: int) -> None:
        line = (
            f"Prefill batch, #new-seq: {len(reqs)}, #new-token: {tokens}, #cached-token: 0, token usage: 0.00, "
            f"#running-req: {len(self.running_batch)}, #queue-req: {len(self.waiting_queue)}"
        )
        if self.args.disaggregation_mode == "prefill":
            line += f", #bootstrap-req: {len(self.bootstrap_queue)}, #inflight-req: 0"
        self._log(line)
        self.metrics.log_stats(self.queues(), prefill_tokens=tokens)

    def log_decode_stats(self) -> None:
        now = time.monotonic()
        rate = self.decode_tokens / max(1e-6, now - self.decode_log_at)
        used = sum(req.input.input_tokens + req.output_tokens for req in self.running_batch)
        line = (
            f"Decode batch, #running-req: {len(self.running_batch)}, #token: {used}, token usage: 0.01, "
            f"gen throughput (token/s): {rate:.2f}, #queue-req: {len(self.waiting_queue)}"
        )
        if self.args.disaggregation_mode == "decode":
            line += f", #prealloc-req: 0, #transfer-req: {len(self.transfer_queue)}"
        self._log(line)
        self.metrics.log_stats({**self.queues(), "gen_throughput": rate}, decode_tokens=self.decode_tokens)
        self.decode_log_at, self.decode_tokens = now, 0

    def _log(self, line: str) -> None:
        print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {line}", flush=True)

    # -- the bed's control -----------------------------------------------------------------------------------

    def answer_control(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer ``{"do": "set", ...}`` with any of the wedges, ``{"do": "clear"}`` or ``{"do": "status"}``."""
        if request["do"] == "clear":
            self.livelock = False
            self.hold, self.spin, self.prefill_s = False, not self.args.sleep_on_idle, 0.0
            self.step_s, self.stall_after, self.deaf, self.load = 0.0, 0, False, None
            self.released.set()
        elif request["do"] == "set":
            self.released.clear()
            self.hold = request.get("hold", self.hold)
            self.livelock = request.get("livelock", self.livelock)
            self.spin = request.get("spin", self.spin)
            self.prefill_s = request.get("prefill_s", self.prefill_s)
            self.step_s = request.get("step_s", self.step_s)
            self.stall_after = request.get("stall_after", self.stall_after)
            self.deaf = request.get("deaf", self.deaf)
            if request.get("publish"):
                from sglang.srt.managers.load_snapshot import ShmLoadSnapshotWriter  # noqa: PLC0415 - one wedge's

                self.load = ShmLoadSnapshotWriter()
        return {
            "loops": self.last_loop,
            "hold": self.hold,
            "spin": self.spin,
            "stalled": self.stalled,
            "decode_batches": self.decode_batches,
            **self.queues(),
        }


def run_scheduler_process(
    args: ServerArgs, ports: PortArgs, parent: int, ready: Connection, dp_rank: int | None = None
) -> None:
    """Run one scheduler; through `ready` comes a list with its pid."""
    bedlink.die_with_parent(parent)
    setproctitle.setproctitle("sglang::scheduler" if dp_rank is None else f"sglang::scheduler_DP{dp_rank}")
    scheduler = Scheduler(args, ports, dp_rank)
    bedlink.serve_control(f"{args.bed_control}.scheduler{dp_rank or ''}", scheduler.answer_control)
    ready.send([os.getpid()])
    ready.close()
    loops = {
        "null": scheduler.event_loop_normal,
        "prefill": scheduler.event_loop_normal_disagg_prefill,
        "decode": scheduler.event_loop_normal_disagg_decode,
    }
    loops[args.disaggregation_mode]()
