"""What a process is by its own name: title, program, command line. Pure.

The names are those of SGLang 0.5, its router and gateway, and vLLM 0.1x. A title may be cut to 15 bytes (`comm`)
where the full one could not be read, so prefixes are matched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from freezeframe.judge.model import Process

Role = Process.Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A role that a name proves."""

    role: Process.Role
    product: str
    # For people: "title sglang::router".
    reason: str
    # Rank labels of the title: "DP0 TP1".
    rank: str = ""


# Title, whole or as the kernel cuts it. vLLM's prefix can be configured (VLLM_PROCESS_NAME_PREFIX).
_TITLES: tuple[tuple[re.Pattern[str], Process.Role, str], ...] = (
    (re.compile(r"sglang::router$"), Role.ROUTER, "sglang-router"),
    (re.compile(r"smg::router$"), Role.ROUTER, "smg"),
    (re.compile(r"(?:sglang|smg)::server$"), Role.LAUNCHER, "sglang-router"),
    (re.compile(r"sglang::schedul(?:er(?P<rank>(?:_[A-Z].*)?))?$"), Role.SCHEDULER, "sglang"),
    (re.compile(r"sglang::detoken(?:izer(?:_router)?)?$"), Role.DETOKENIZER, "sglang"),
    (re.compile(r"sglang::data_pa(?:rallel_controller)?$"), Role.DP_CONTROLLER, "sglang"),
    (re.compile(r"sglang::tokeniz(?:er_worker(?::\d+)?)?$"), Role.TOKENIZER_WORKER, "sglang"),
    (re.compile(r"ray::ProxyActor"), Role.PROXY, "ray-serve"),
    # What it speaks with the proxy is gRPC, not HTTP.
    (re.compile(r"ray::ServeRepli"), Role.WORKER, "ray-serve"),
    (re.compile(r"\w+::APIServ(?:e(?:r(?:_\d+)?)?)?$"), Role.ENGINE_HTTP, "vllm"),
    (re.compile(r"\w+::EngineCo(?:r(?:e(?P<rank>_.*)?)?)?$"), Role.SCHEDULER, "vllm"),
    (re.compile(r"\w+::Worker(?P<rank>_.*)?$"), Role.WORKER, "vllm"),
    (re.compile(r"\w+::DPCoord(?:inator)?$"), Role.DP_CONTROLLER, "vllm"),
)
_RANK = re.compile(r"(?:^|_)((?:ATTN_CP|MOE_DP|MOE_EP|MOE_TP|DCP|PCP|CP|DP|PP|TP|EP)\d+)")

# Program name (of the executable or the main thread) of what is no script.
_PROGRAMS: dict[str, tuple[Process.Role, str]] = {
    "smg": (Role.ROUTER, "smg"),
    "amg": (Role.ROUTER, "smg"),
    "sgl-model-gateway": (Role.ROUTER, "sglang-router"),
    "sgl-router": (Role.ROUTER, "sgl-router"),
    "vllm-router": (Role.ROUTER, "vllm-router"),
    "llama-server": (Role.ENGINE_HTTP, "llama.cpp"),
}

# Script or module of an interpreter, with the subcommands that count; () = any.
_COMMANDS: dict[str, tuple[tuple[str, ...], Process.Role, str]] = {
    "sglang.launch_server": ((), Role.ENGINE_HTTP, "sglang"),
    "sglang.cli.main": (("serve",), Role.ENGINE_HTTP, "sglang"),
    "sglang": (("serve",), Role.ENGINE_HTTP, "sglang"),
    "sglang_router.launch_router": ((), Role.ROUTER, "sglang-router"),
    "sglang_router.launch_server": ((), Role.LAUNCHER, "sglang-router"),
    "sglang-router": ((), Role.ROUTER, "sglang-router"),
    "smg.launch_router": ((), Role.ROUTER, "smg"),
    "smg": ((), Role.ROUTER, "smg"),
    "amg": ((), Role.ROUTER, "smg"),
    "vllm-router": ((), Role.ROUTER, "vllm-router"),
    "vllm": (("serve",), Role.ENGINE_HTTP, "vllm"),
    "vllm.entrypoints.cli.main": (("serve",), Role.ENGINE_HTTP, "vllm"),
    "vllm.entrypoints.openai.api_server": ((), Role.ENGINE_HTTP, "vllm"),
    "vllm.entrypoints.api_server": ((), Role.ENGINE_HTTP, "vllm"),
    "dynamo.frontend": ((), Role.ROUTER, "dynamo"),
    "dynamo.sglang": ((), Role.ENGINE_HTTP, "sglang"),
    "dynamo.vllm": ((), Role.ENGINE_HTTP, "vllm"),
    "transformers": (("serve",), Role.ENGINE_HTTP, "transformers"),
    "trtllm-serve": ((), Role.ENGINE_HTTP, "tensorrt-llm"),
}

# Programs that pass requests on; they count once they connect to a router or an engine.
PROXIES: dict[str, str] = {
    "nginx": "nginx",
    "openresty": "nginx",
    "envoy": "envoy",
    "haproxy": "haproxy",
    "traefik": "traefik",
    "caddy": "caddy",
    "httpd": "apache",
    "apache2": "apache",
    "litellm": "litellm",
    "linkerd2-proxy": "linkerd",
    "docker-proxy": "docker-proxy",
    "kong": "kong",
}
# Programs that serve some Python application over HTTP.
HTTP_SERVERS = frozenset({"uvicorn", "hypercorn", "granian", "gunicorn"})
# Programs that connect to a router or an engine and wait for no answer of a model.
WATCHERS = frozenset(
    {
        "prometheus", "vmagent", "grafana-agent", "alloy", "otelcol", "otelcol-contrib", "telegraf", "datadog-agent",
        "agent", "node_exporter", "fluent-bit", "vector", "kubelet", "consul", "freezeframe-agentd",
    }
)  # fmt: skip
# Programs that start others.
SUPERVISORS = frozenset(
    {
        "systemd", "init", "supervisord", "s6-supervise", "runsv", "tini", "dumb-init", "containerd-shim",
        "containerd-shim-runc-v2", "conmon", "dockerd", "containerd", "bash", "sh", "dash", "zsh", "tmux",
        "tmux: server", "screen", "sudo", "su", "timeout", "nohup", "setsid", "numactl", "uv", "conda", "make", "pm2",
    }
)  # fmt: skip
# Programs that a router may connect to and that are no engines.
SERVICES = frozenset(
    {
        "redis-server", "valkey-server", "postgres", "mysqld", "mariadbd", "etcd", "nats-server", "consul",
        "kube-apiserver", "otelcol", "otelcol-contrib", "jaeger", "tempo", "prometheus", "vmagent", "systemd-resolved",
        "dnsmasq", "coredns", "memcached", "java", "oracle",
    }
)  # fmt: skip


def name_of(process: Process) -> str:
    """Program name: the executable's, else the main thread's."""
    return process.exe.removesuffix(" (deleted)").rpartition("/")[2] or process.comm


def program_names(process: Process) -> frozenset[str]:
    """Names that a process goes by: executable, main thread, script."""
    return frozenset(filter(None, (name_of(process), process.comm, command_of(process.argv)[0].rpartition("/")[2])))


def find_named(process: Process) -> Named | None:
    """The role that title, program or own command line prove; None when they say nothing."""
    for text in dict.fromkeys((process.title, process.comm)):
        for pattern, role, product in _TITLES:
            found = pattern.match(text)
            if found is not None:
                rank = " ".join(_RANK.findall(found.groupdict().get("rank") or ""))
                return Named(role=role, product=product, reason=f"title {text}", rank=rank)
    program = name_of(process)
    if program in _PROGRAMS:
        role, product = _PROGRAMS[program]
        return Named(role=role, product=product, reason=f"program {program}")
    if process.argv_source != "own":
        return None
    command, rest = command_of(process.argv)
    key = command.rpartition("/")[2]
    if key == "launch_server.py" and "sglang/" in command:
        key = "sglang.launch_server"
    known = _COMMANDS.get(key)
    if known is None or (known[0] and not set(known[0]) & set(rest[:1])):
        return None
    if not is_interpreter(program) and program != key:
        # `timeout 60 python -m sglang.launch_server`, `uv run vllm serve`: it starts what it names.
        return Named(role=Role.LAUNCHER, product=known[2], reason=f"starts {key}")
    return Named(role=known[1], product=known[2], reason=f"command {' '.join((key, *known[0]))}")


def is_interpreter(program: str) -> bool:
    """Whether a program runs scripts; an unreadable one counts."""
    return not program or re.match(r"(?:python|pypy)[\d.]*[a-z]?$", program) is not None


def command_of(argv: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Script or module that a command line runs, and what follows it; the program itself when it is no interpreter."""
    if not argv:
        return "", ()
    if "-m" in argv[:-1]:
        index = argv.index("-m")
        if is_interpreter(argv[0].rpartition("/")[2]) or any(map(_names_python, argv[:index])):
            return argv[index + 1], argv[index + 2 :]
    if not is_interpreter(argv[0].rpartition("/")[2]):
        return argv[0], argv[1:]
    index = 1
    while index < len(argv) and argv[index].startswith("-"):
        if argv[index] == "-c":
            return "", ()
        index += 2 if argv[index] in {"-X", "-W"} else 1
    return (argv[index], argv[index + 1 :]) if index < len(argv) else ("", ())


def _names_python(word: str) -> bool:
    return bool(word) and is_interpreter(word.rpartition("/")[2])


def flag_values(argv: tuple[str, ...], *flags: str) -> tuple[str, ...]:
    """Values of a flag, in all its places: `--prefill URL PORT --prefill URL`, `--port=30000`."""
    values = []
    inside = False
    for word in argv:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            inside = flag.replace("_", "-") in flags
            if inside and equals:
                values.append(value)
        elif inside:
            values.append(word)
    return tuple(values)
