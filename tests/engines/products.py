"""The real engines: how each is started on the CPU, and which of its processes is which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / ".venv-vllm" / "tiny"
# Of the model's 30 answers at a time, so many run and the rest wait in the scheduler's queue.
RUNNING = 20


@dataclass(frozen=True, kw_only=True)
class Product:
    """One engine's software."""

    name: str
    version: str
    python: Path
    start: tuple[str, ...]
    """Arguments of that Python, up to --port."""
    env: Mapping[str, str]
    answers: str
    """A path that is answered once it serves, and that asks nothing of the model."""
    parts: Mapping[str, str]
    """Part of the engine -> how the kernel's name of its process starts."""
    pair: tuple[str, ...] = ()
    """Further arguments of an engine that is one of a pair; empty where it cannot be."""

    def command(self, port: int, *, role: str = "null", bootstrap_port: int = 0) -> list[str]:
        """Command line of one engine; `role` is "null", "prefill" or "decode"."""
        command = [str(self.python), *self.start, "--port", str(port)]
        if role != "null":
            command += [
                *self.pair,
                "--disaggregation-mode",
                role,
                "--disaggregation-bootstrap-port",
                str(bootstrap_port),
            ]
        if role == "decode":
            # Its other ways to give a request back need memory that a GPU pins.
            command += ["--disaggregation-decode-retraction-backup", "none"]
        return command


VLLM = Product(
    name="vllm",
    version="0.32.0",
    python=ROOT / ".venv-vllm/bin/python",
    start=(
        str(ROOT / ".venv-vllm/bin/vllm"), "serve", str(MODEL), "--served-model-name", "tiny", "--host", "127.0.0.1",
        "--max-model-len", "1024", "--max-num-seqs", str(RUNNING), "--dtype", "bfloat16", "--enforce-eager",
    ),
    env={
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # for POST /pause
    },
    answers="/v1/models",
    parts={"scheduler": "VLLM::EngineCor", "worker": "VLLM::Worker"},
)  # fmt: skip

SGLANG = Product(
    name="sglang",
    version="0.5.23",
    python=ROOT / ".venv-sglang/bin/python",
    start=(
        "-m", "sglang.launch_server", "--model-path", str(MODEL), "--served-model-name", "tiny", "--host", "127.0.0.1",
        "--device", "cpu", "--dtype", "bfloat16", "--attention-backend", "torch_native",
        "--sampling-backend", "pytorch", "--disable-overlap-schedule", "--disable-radix-cache",
        "--skip-server-warmup", "--enable-metrics", "--max-total-tokens", "32768", "--max-running-requests",
        str(RUNNING), "--sleep-on-idle",
    ),
    env={"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_HOST_IP": "127.0.0.1"},
    # /health runs a generation.
    answers="/model_info",
    parts={"scheduler": "sglang::schedul", "detokenizer": "sglang::detoken"},
    pair=("--disaggregation-transfer-backend", "mooncake_tcp"),
)  # fmt: skip

PRODUCTS = {product.name: product for product in (VLLM, SGLANG)}
