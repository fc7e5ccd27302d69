"""The detokenizer process: tokens in, text out."""

from __future__ import annotations

import bedlink
import setproctitle
import zmq
from sglang.srt.messages import BatchStrOutput, BatchTokenIDOutput
from sglang.srt.network import get_zmq_socket
from sglang.srt.server_args import PortArgs


class DetokenizerManager:
    def __init__(self, ports: PortArgs) -> None:
        context = zmq.Context()
        self.recv_from_scheduler = get_zmq_socket(context, zmq.PULL, ports.detokenizer_ipc_name, bind=True)
        self.send_to_tokenizer = get_zmq_socket(context, zmq.PUSH, ports.tokenizer_ipc_name, bind=False)

    def event_loop(self) -> None:
        while True:
            batch: BatchTokenIDOutput = self.recv_from_scheduler.recv_pyobj()
            texts = [f"t{count} " for count in batch.completion_tokens]
            self.send_to_tokenizer.send_pyobj(
                BatchStrOutput(
                    rids=batch.rids,
                    output_strs=texts,
                    completion_tokens=batch.completion_tokens,
                    finished=batch.finished,
                )
            )


def run_detokenizer_process(ports: PortArgs, parent: int) -> None:
    bedlink.die_with_parent(parent)
    setproctitle.setproctitle("sglang::detokenizer")
    DetokenizerManager(ports).event_loop()
