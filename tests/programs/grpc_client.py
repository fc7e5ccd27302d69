"""`python grpc_client.py PORT N HANGING`: N calls that are answered, HANGING that are not, a line; then it waits."""

from __future__ import annotations

import sys
import threading

import grpc


def main() -> None:
    port, answered, hanging = map(int, sys.argv[1:])
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    echo, hang = (channel.unary_unary(f"/t/{name}") for name in ("echo", "hang"))
    for number in range(answered):
        assert echo(b"x" * number, timeout=20) == b"x" * number
    calls = [hang.future(b"y") for _ in range(hanging)]
    print("ready", flush=True)
    threading.Event().wait()
    del calls


if __name__ == "__main__":
    main()
