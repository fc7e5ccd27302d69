"""Kubernetes: a port of the agent's pod, forwarded by kubectl, whose errors are shown as they are.

kubectl and the cluster's API say who may (`pods/portforward`) and encrypt the way, so the agent in the pod listens
without TLS on the pod's own loopback address (`--insecure`). Whoever may connect to loopback ports of this machine can
use the forwarded one while it is there.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import grpc

from freezeframe.client.connection import (
    ANSWER_S,
    CHANNEL_OPTIONS,
    FRAME_HEAD_BYTES,
    PREFACE,
    Agent,
    begins_http2,
    calling,
)
from freezeframe.client.errors import AgentDiedError, ForwardingError, NotAnAgentError
from freezeframe.client.hosts import Kube
from freezeframe.client.sockets import private_directory
from freezeframe.client.transports import programs

READY_S = 30.0
_BREAK_S = 1.0
_FORWARDING = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) ->")


@contextmanager
def connected(place: Kube, environ: Mapping[str, str]) -> Iterator[Agent]:
    """Run kubectl for as long as the block runs. Raises ForwardingError with its own words, AgentError."""
    directory = private_directory(environ)
    log = os.path.join(directory, "kubectl.log")
    process: subprocess.Popen[bytes] | None = None
    try:
        process = _start(place, log)
        port = _await_port(process, log, place)
        _check(place, port, log)
        channel = grpc.insecure_channel(f"ipv4:127.0.0.1:{port}", options=CHANNEL_OPTIONS)
        try:
            with calling(place.name, channel) as agent:
                yield agent
        except AgentDiedError as error:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_BREAK_S)
            if process.returncode is None:
                raise
            raise programs.ended(process, log, f"connecting to {place.name}: kubectl") from error
    finally:
        if process is not None:
            programs.end(process)
            if process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(directory, ignore_errors=True)


def _start(place: Kube, log: str) -> subprocess.Popen[bytes]:
    command = [
        "kubectl", "port-forward", "--namespace", place.namespace, "--address", "127.0.0.1",
        f"pod/{place.pod}", f":{place.port}",
    ]  # fmt: skip
    try:
        with open(log, "wb") as stream:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stream)
    except FileNotFoundError as error:
        raise ForwardingError(
            f"connecting to {place.name}: there is no kubectl here",
            "install it: https://kubernetes.io/docs/tasks/tools",
        ) from error
    except OSError as error:
        raise ForwardingError(f"connecting to {place.name}: starting kubectl: {error.strerror}") from error


def _await_port(process: subprocess.Popen[bytes], log: str, place: Kube) -> int:
    """Read on standard output which port kubectl took."""
    deadline = time.monotonic() + READY_S
    said = b""
    if process.stdout is None:
        raise ForwardingError(f"connecting to {place.name}: the output of kubectl was not opened")
    while (found := _FORWARDING.search(said)) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise programs.failed(f"connecting to {place.name}: kubectl forwards nothing after {READY_S:.0f} s", log)
        if not select.select([process.stdout], [], [], left)[0]:
            continue
        piece = os.read(process.stdout.fileno(), 4096)
        if not piece:
            raise programs.ended(process, log, f"connecting to {place.name}: kubectl")
        said += piece
    return int(found[1])


def _check(place: Kube, port: int, log: str) -> None:
    """Ask for an answer: kubectl takes connections also where nothing listens in the pod."""
    doing = f"connecting to {place.name}"
    try:
        with socket.create_connection(("127.0.0.1", port), ANSWER_S) as probe:
            probe.sendall(PREFACE)
            head = probe.recv(FRAME_HEAD_BYTES)
    except OSError:
        # What kubectl says of it says more.
        head = b""
    if not head:
        raise programs.failed(
            f"{doing}: nothing answers on port {place.port} of the pod",
            log,
            'the agent there listens with --insecure and, under [remote], listen = "127.0.0.1:7443"; '
            f"one that speaks TLS: kubectl port-forward -n {place.namespace} {place.pod} {place.port}, then tls://localhost:{place.port}",
        )
    if not begins_http2(head):
        raise NotAnAgentError(f"{doing}: what answers on port {place.port} of the pod is no freezeframe agent")
