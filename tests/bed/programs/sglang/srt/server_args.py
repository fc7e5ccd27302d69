"""Launch arguments and the names of the zmq sockets."""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ServerArgs:
    """Arguments of one engine; those that start with ``bed_`` are the bed's own and come from the environment."""

    model_path: str
    served_model_name: str
    host: str
    port: int
    disaggregation_mode: str
    """"null" (unified), "prefill" or "decode"."""
    disaggregation_bootstrap_port: int
    sleep_on_idle: bool
    dp_size: int
    tokenizer_worker_num: int
    decode_step_s: float
    """Seconds of one decode batch of one request; each further request adds 1 ms."""
    bed_control: str
    """Path of the HTTP process's control socket; the scheduler's has ``.scheduler`` added."""

    @property
    def engine_type(self) -> str:
        return "unified" if self.disaggregation_mode == "null" else self.disaggregation_mode


@dataclass(frozen=True, kw_only=True)
class PortArgs:
    """Addresses of the zmq sockets, random names as in SGLang."""

    tokenizer_ipc_name: str
    tokenizer_worker_ipc_name: str
    scheduler_input_ipc_name: str
    detokenizer_ipc_name: str

    def tokenizer_of(self, worker: int) -> str:
        """Where a tokenizer worker receives."""
        return f"{self.tokenizer_ipc_name}.{worker}"

    def scheduler_of(self, rank: int) -> str:
        """Where a data parallel scheduler receives."""
        return f"{self.scheduler_input_ipc_name}.{rank}"

    @staticmethod
    def init_new() -> PortArgs:
        def name() -> str:
            with tempfile.NamedTemporaryFile() as unique:
                return f"ipc://{unique.name}"

        return PortArgs(
            tokenizer_ipc_name=name(),
            tokenizer_worker_ipc_name=name(),
            scheduler_input_ipc_name=name(),
            detokenizer_ipc_name=name(),
        )


def prepare_server_args() -> ServerArgs:
    parser = argparse.ArgumentParser(prog="sglang.launch_server")
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--served-model-name", default="tiny")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--disaggregation-mode", choices=["null", "prefill", "decode"], default="null")
    parser.add_argument("--disaggregation-bootstrap-port", type=int, default=8998)
    parser.add_argument("--enable-metrics", action="store_true")
    parser.add_argument("--sleep-on-idle", action="store_true")
    parser.add_argument("--dp-size", type=int, default=1)
    parser.add_argument("--tokenizer-worker-num", type=int, default=1)
    args = parser.parse_args()
    return ServerArgs(
        model_path=args.model_path,
        served_model_name=args.served_model_name,
        host=args.host,
        port=args.port,
        disaggregation_mode=args.disaggregation_mode,
        disaggregation_bootstrap_port=args.disaggregation_bootstrap_port,
        sleep_on_idle=args.sleep_on_idle,
        dp_size=args.dp_size,
        tokenizer_worker_num=args.tokenizer_worker_num,
        decode_step_s=float(os.environ.get("BED_DECODE_STEP_S", "0.019")),
        bed_control=os.environ["BED_CONTROL"],
    )
