"""Which arguments of a command line may leave the host: an allow-list by structure. Pure.

Kept: argv[0], names of scripts, modules and subcommands, names of flags, and the values of the flags listed here. Of a
URL only scheme, host and port. Everything else is "…".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

HIDDEN = "…"
# Flags whose values say how serving is laid out and are no secrets. Without leading dashes; "-" and "_" are the same.
_SAFE_VALUES = frozenset({
    "host", "port", "nnodes", "node-rank", "tp", "tp-size", "tensor-parallel-size", "dp", "dp-size",
    "data-parallel-size", "pp", "pp-size", "pipeline-parallel-size", "ep", "ep-size", "max-running-requests",
    "max-num-seqs", "max-model-len", "context-length", "mem-fraction-static", "gpu-memory-utilization",
    "chunked-prefill-size", "disaggregation-mode", "disaggregation-transfer-backend",
    "disaggregation-bootstrap-port", "policy", "prometheus-port", "prometheus-host", "max-concurrent-requests",
    "queue-size", "queue-timeout-secs", "request-timeout-secs", "retry-max-retries", "cb-failure-threshold",
    "health-check-interval-secs", "worker-urls", "prefill", "decode", "attention-backend", "sampling-backend",
    "device", "dtype", "kv-cache-dtype", "quantization", "watchdog-timeout", "log-level", "schedule-policy",
    "tokenizer-worker-num", "enable-metrics", "dist-init-addr", "loop", "workers",
})  # fmt: skip
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}")
_PROGRAM = re.compile(r"[\w./+-]{1,255}", re.ASCII)
_FLAG = re.compile(r"-{1,2}[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# Flags of an interpreter, before the script or module.
_INTERPRETER_FLAGS = frozenset({"-u", "-I", "-E", "-s", "-B", "-O", "-m"})
# Words that follow the interpreter or the program: a script or module, a subcommand or two.
_WORDS = 3
_ARGUMENTS = 200


def allowed(argv: Sequence[str]) -> tuple[str, ...]:
    """The arguments with everything hidden that is not on the list; at most 200 of them."""
    kept: list[str] = []
    flag = ""
    words = _WORDS
    for argument in argv[:_ARGUMENTS]:
        if not kept:
            kept.append(argument if _PROGRAM.fullmatch(argument) else HIDDEN)
        elif argument.startswith("-") and not _NUMBER.fullmatch(argument):
            flag, separator, value = argument.partition("=")
            shown = flag if _FLAG.fullmatch(flag) else HIDDEN
            kept.append(f"{shown}={_value(flag, value)}" if separator else shown)
            words = words if flag in _INTERPRETER_FLAGS else 0
            flag = "" if separator else flag
        elif words and (not flag or flag in _INTERPRETER_FLAGS):
            kept.append(argument if _PROGRAM.fullmatch(argument) else HIDDEN)
            flag = ""
            words -= 1
        else:
            kept.append(_value(flag, argument))
    return tuple(kept)


def _value(flag: str, value: str) -> str:
    if flag.lstrip("-").replace("_", "-") not in _SAFE_VALUES:
        return HIDDEN
    if "://" in value:
        return _bare_url(value)
    return value if _NUMBER.fullmatch(value) or _NAME.fullmatch(value) else HIDDEN


def _bare_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return HIDDEN
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}{port}" if _NAME.fullmatch(host) and _NAME.fullmatch(parts.scheme) else HIDDEN
