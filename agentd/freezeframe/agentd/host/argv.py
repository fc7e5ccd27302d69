"""What of a command line may be kept: an allow-list by structure. Pure.

Kept: the program, an interpreter's script or module, words that name a subcommand, the names of flags, and the values
of the flags listed here, each checked for its shape. All else becomes "…". A URL keeps scheme, host and port only; a
model's path keeps its last part only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from freezeframe.agentd.host.text import escape

HIDDEN = "…"
_MAX_ARGUMENTS = 200
_MAX_ARGUMENT_BYTES = 256
_MAX_TITLE_BYTES = 256

# Flags of interpreters that take the next argument; for the rest of them that argument is what is run.
_INTERPRETERS = re.compile(r"(?:python[\d.]*[a-z]?|pypy[\d.]*|node|nodejs|ruby|perl|(?:ba|da|z|k)?sh|uv|uvx)")
_WITHOUT_VALUE = frozenset({"-u", "-I", "-E", "-s", "-S", "-B", "-O", "-OO", "-P", "-b", "-d", "-q", "-v", "-x"})
_WITH_VALUE = frozenset({"-X", "-W", "-r", "--require", "--loader", "--import", "-c", "-e", "--eval"})

_WORD = re.compile(r"[A-Za-z][\w.:+-]{0,63}")
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.\w+){0,15}")
_SCRIPT = re.compile(r"[\w./@+ ~-]{1,255}")
_FLAG = re.compile(r"(?:-[A-Za-z]|--[A-Za-z][\w.-]{0,79})")
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,9})?[A-Za-z%]{0,3}")
_MODEL = re.compile(r"(?!(?:hf|sk|ghp)[_-])[\w.:+-]{1,100}")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.%]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::\d{1,5})?")
_URL = re.compile(
    r"([a-z][a-z0-9+.-]{1,15})://(?:[^/?#@\s]*@)*([^/?#@\s]{1,260})(/[^?#\s]{0,200})?(?:[?#].*)?$", re.DOTALL
)
# Long runs of letters and digits look like keys, whatever the position.
_LOOKS_SECRET = re.compile(r"(?=[\w+/=-]*\d)(?=[\w+/=-]*[A-Za-z])[\w+/=-]{24,}")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SUBCOMMANDS = _names(
    "serve server launch launch_server router start run worker frontend api api_server gateway proxy chat bench test"
)

_NUMBERS = _names("""
    port grpc-port prometheus-port metrics-port health-check-port disaggregation-bootstrap-port nccl-port dist-port
    api-port master-port data-parallel-rpc-port
    tp tp-size tensor-parallel-size pp pp-size pipeline-parallel-size dp dp-size data-parallel-size
    data-parallel-size-local data-parallel-start-rank ep ep-size expert-parallel-size nnodes node-rank nproc-per-node
    base-gpu-id gpu-id-step cp-size attn-cp-size moe-dp-size workers worker-num tokenizer-worker-num
    detokenizer-worker-num api-server-count threads num-workers
    max-running-requests max-queued-requests max-prefill-tokens max-total-tokens max-num-seqs max-num-batched-tokens
    max-model-len context-length chunked-prefill-size mem-fraction-static gpu-memory-utilization page-size block-size
    max-concurrent-requests queue-size queue-timeout-secs rate-limit-tokens-per-second
    request-timeout-secs worker-startup-timeout-secs worker-startup-check-interval retry-max-retries
    health-failure-threshold health-success-threshold health-check-timeout-secs health-check-interval-secs
    cb-failure-threshold cb-success-threshold cb-timeout-duration-secs cb-window-duration-secs
    watchdog-timeout soft-watchdog-timeout dist-timeout cuda-graph-max-bs num-reserved-decode-tokens
    clients concurrency max-concurrency num-prompts request-rate timeout timeout-keep-alive backlog limit-concurrency
    cache-threshold balance-abs-threshold balance-rel-threshold eviction-interval-secs max-tree-size
    """)
_WORDS = _names("""
    disaggregation-mode disaggregation-transfer-backend policy prefill-policy decode-policy backend attention-backend
    sampling-backend grammar-backend device dtype kv-cache-dtype quantization load-balance-method schedule-policy
    log-level log-level-http loop http tool-call-parser reasoning-parser distributed-executor-backend load-format
    kv-transfer-config-role history-backend connection-mode
    """)
_ADDRESSES = _names("host bind prometheus-host metrics-host dist-init-addr nccl-init-addr master-addr")
_URLS = _names(
    "worker-urls worker-url prefill decode url base-url api-base target upstream router-url bootstrap-url endpoint"
)
_PATHS = _names("model model-path served-model-name tokenizer-path tokenizer")


def allowed(argv: Sequence[bytes]) -> tuple[str, ...]:
    """Keep of a command line what the allow-list knows; see the module docstring."""
    words = [escape(argument, _MAX_ARGUMENT_BYTES) for argument in argv[:_MAX_ARGUMENTS]]
    if not words:
        return ()
    kept = [_program(words[0])]
    rest = words[1:]
    if _INTERPRETERS.fullmatch(words[0].rpartition("/")[2]):
        taken = _redact_interpreter(rest)
        kept += taken
        rest = rest[len(taken) :]
    kept += _redact_arguments(rest)
    if len(argv) > _MAX_ARGUMENTS:
        kept.append(HIDDEN)
    return tuple(kept)


def allowed_title(title: bytes) -> str:
    """Keep of a title, set by the process itself, its words; values of flags and assignments are hidden."""
    words = escape(title, _MAX_TITLE_BYTES).split()
    kept: list[str] = []
    hide_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        if word.startswith("-"):
            kept += _redact_arguments([word])
            hide_next = not equals
        elif hide_next:
            kept.append(HIDDEN)
            hide_next = False
        elif "://" in word:
            kept.append(_url(word) or HIDDEN)
        elif equals:
            kept.append(f"{name}={HIDDEN}")
        else:
            kept.append(HIDDEN if _LOOKS_SECRET.search(word) else word)
    return " ".join(kept)


def _redact_interpreter(rest: list[str]) -> list[str]:
    """The part of an interpreter's arguments up to what it runs."""
    kept: list[str] = []
    index = 0
    while index < len(rest):
        word = rest[index]
        following = rest[index + 1] if index + 1 < len(rest) else None
        if word == "-m":
            kept.append(word)
            if following is not None:
                kept.append(following if _MODULE.fullmatch(following) else HIDDEN)
            return kept
        if word in _WITH_VALUE:
            kept.append(word)
            if following is not None:
                kept.append(HIDDEN)
            if word in {"-c", "-e", "--eval"}:
                return kept
            index += 2
            continue
        if word.startswith("--") or word in _WITHOUT_VALUE:
            kept.append(word if _is_flag(word) else HIDDEN)
            index += 1
            continue
        if word.startswith("-"):
            return kept  # "-lc CODE": what follows may be anything
        kept.append(word if _SCRIPT.fullmatch(word) and not _LOOKS_SECRET.search(word.rpartition("/")[2]) else HIDDEN)
        return kept
    return kept


def _redact_arguments(rest: Iterable[str]) -> list[str]:
    kept: list[str] = []
    check: Callable[[str], str] | None = None
    leading = True
    for word in rest:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            flag, equals, value = word.partition("=")
            check = _CHECKS.get(flag.lstrip("-").replace("_", "-"))
            if not _is_flag(flag) and check is None:
                kept.append(HIDDEN)
            elif equals:
                kept.append(f"{flag}={(check(value) if check else '') or HIDDEN}")
            else:
                kept.append(flag)
            leading = False
        elif check is not None:
            # Some flags take several values (`--worker-urls A B`, `--prefill URL PORT`).
            kept.append(check(word) or HIDDEN)
        elif leading and word in _SUBCOMMANDS:
            kept.append(word)
        else:
            leading = False
            kept.append(HIDDEN)
    return kept


def _is_flag(word: str) -> bool:
    # "-pSECRET" is how some programs take a password: a single dash is kept with a single letter.
    return _FLAG.fullmatch(word) is not None and not _LOOKS_SECRET.search(word.replace("-", ""))


def _program(word: str) -> str:
    return word if _SCRIPT.fullmatch(word) and not _LOOKS_SECRET.search(word.rpartition("/")[2]) else HIDDEN


def _number(word: str) -> str:
    return word if _NUMBER.fullmatch(word) else ""


def _word(word: str) -> str:
    return word if _WORD.fullmatch(word) and not _LOOKS_SECRET.search(word) else ""


def _address(word: str) -> str:
    return word if _ADDRESS.fullmatch(word) and not _LOOKS_SECRET.search(word.replace(".", "")) else ""


def _url(word: str) -> str:
    found = _URL.fullmatch(word)
    if found is None or not _address(found[2]):
        return ""
    return f"{found[1]}://{found[2]}"


def _url_or_number(word: str) -> str:
    # `--prefill URL BOOTSTRAP_PORT`, and "none" where there is none.
    return _url(word) or _number(word) or _address(word)


def _last_part(word: str) -> str:
    part = word.rstrip("/").rpartition("/")[2]
    return part if _MODEL.fullmatch(part) else ""


_CHECKS: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(_NUMBERS, _number),
    **dict.fromkeys(_WORDS, _word),
    **dict.fromkeys(_ADDRESSES, _address),
    **dict.fromkeys(_URLS, _url_or_number),
    **dict.fromkeys(_PATHS, _last_part),
}
