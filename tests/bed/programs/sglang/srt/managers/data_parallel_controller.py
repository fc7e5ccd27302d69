"""The data parallel controller: one process between the tokenizer side and the schedulers, and their parent.

It deals requests out in turn. The real one looks for them without end and burns a core; this one sleeps between them,
as on a small machine that would starve the others.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from dataclasses import replace
from multiprocessing.connection import Connection

import bedlink
import setproctitle
import zmq
from sglang.srt.managers.scheduler import run_scheduler_process
from sglang.srt.messages import TokenizedGenerateReqInput
from sglang.srt.network import get_zmq_socket
from sglang.srt.server_args import PortArgs, ServerArgs


class DataParallelController:
    def __init__(self, args: ServerArgs, ports: PortArgs) -> None:
        context = zmq.Context()
        self.recv_from_tokenizer = get_zmq_socket(context, zmq.PULL, ports.scheduler_input_ipc_name, bind=False)
        self.workers = [
            get_zmq_socket(context, zmq.PUSH, ports.scheduler_of(rank), bind=True) for rank in range(args.dp_size)
        ]
        self.round_robin = itertools.cycle(self.workers)

    def event_loop(self) -> None:
        while True:
            while True:
                try:
                    received = self.recv_from_tokenizer.recv_pyobj(zmq.NOBLOCK)
                except zmq.Again:
                    break
                if isinstance(received, TokenizedGenerateReqInput):
                    next(self.round_robin).send_pyobj(received)
                else:
                    for worker in self.workers:
                        worker.send_pyobj(received)
            time.sleep(0.005)


def run_data_parallel_controller_process(args: ServerArgs, ports: PortArgs, parent: int, ready: Connection) -> None:
    bedlink.die_with_parent(parent)
    setproctitle.setproctitle("sglang::data_parallel_controller")
    controller = DataParallelController(args, ports)
    spawn = multiprocessing.get_context("spawn")
    pids = []
    for rank in range(args.dp_size):
        reader, writer = spawn.Pipe(duplex=False)
        own = replace(ports, scheduler_input_ipc_name=ports.scheduler_of(rank))
        scheduler = spawn.Process(target=run_scheduler_process, args=(args, own, os.getpid(), writer, rank))
        scheduler.start()
        writer.close()
        pids += reader.recv()
    ready.send(pids)
    ready.close()
    controller.event_loop()
