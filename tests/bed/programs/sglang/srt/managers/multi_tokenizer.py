"""Several tokenizer workers: what the parent does for them, in a thread of its own.

Each worker is a process with an HTTP server and a tokenizer manager, and all accept on one socket. A request's id
begins with the number of its worker; what comes back from the detokenizer goes to that one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import zmq
from sglang.srt.messages import BatchStrOutput
from sglang.srt.network import get_zmq_socket
from sglang.srt.server_args import PortArgs


class MultiTokenizerRouter:
    def __init__(self, ports: PortArgs, workers: int) -> None:
        context = zmq.Context()
        self.receive_from_worker = get_zmq_socket(context, zmq.PULL, ports.tokenizer_worker_ipc_name, bind=True)
        self.send_to_scheduler = get_zmq_socket(context, zmq.PUSH, ports.scheduler_input_ipc_name, bind=True)
        self.recv_from_detokenizer = get_zmq_socket(context, zmq.PULL, ports.tokenizer_ipc_name, bind=True)
        self.workers = [
            get_zmq_socket(context, zmq.PUSH, ports.tokenizer_of(worker), bind=False) for worker in range(workers)
        ]
        self.poller = zmq.Poller()
        self.poller.register(self.receive_from_worker, zmq.POLLIN)
        self.poller.register(self.recv_from_detokenizer, zmq.POLLIN)

    def event_loop(self) -> None:
        while True:
            ready = dict(self.poller.poll())
            if self.receive_from_worker in ready:
                self.send_to_scheduler.send(self.receive_from_worker.recv())
            if self.recv_from_detokenizer in ready:
                self.distribute(self.recv_from_detokenizer.recv_pyobj())

    def distribute(self, received: Any) -> None:
        if not isinstance(received, BatchStrOutput):
            for worker in self.workers:
                worker.send_pyobj(received)
            return
        for number, worker in enumerate(self.workers):
            own = [i for i, rid in enumerate(received.rids) if worker_of(rid) == number]
            if own:
                worker.send_pyobj(
                    replace(
                        received,
                        rids=[received.rids[i] for i in own],
                        output_strs=[received.output_strs[i] for i in own],
                        completion_tokens=[received.completion_tokens[i] for i in own],
                        finished=[received.finished[i] for i in own],
                    )
                )


def worker_of(rid: str) -> int:
    return int(rid.partition("-")[0])
