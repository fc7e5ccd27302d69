"""Loads the request ledger and proves it on one real request; prints a line of JSON. Runs as it is under any kernel."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import tempfile
import threading
import time

from freezeframe.agentd.bpf import loader, programs
from freezeframe.agentd.host import Host
from freezeframe.agentd.host.native import machine, task_iterator
from freezeframe.agentd.recorder.ledger import Ledger

REQUEST = (
    b"POST /v1/chat/completions?key=s3cret HTTP/1.1\r\nHost: a\r\nX-Request-Id: smoke-1\r\nContent-Length: 0\r\n\r\n"
)


def hang(listener: socket.socket, taken: threading.Event, release: threading.Event) -> None:
    """Read a request and do not answer it."""
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        taken.set()
        release.wait(60)


def main() -> None:
    directory = tempfile.mkdtemp()
    begin = time.monotonic()
    # On an emulated processor the compiler takes a minute.
    loaded = loader.load(programs.LEDGER, directory, timeout_s=240.0)
    ledger = Ledger(loaded)
    load_ms = (time.monotonic() - begin) * 1000
    taken, release = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=hang, args=(listener, taken, release))
        server.start()
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(REQUEST)
            taken.wait(30)
            flights = []
            give_up = time.monotonic() + 10
            while time.monotonic() < give_up and not any(each.request_id for each in flights):
                time.sleep(0.1)
                flights = [each for each in ledger.in_flight([os.getpid()]) if each.side == "server"]
            release.set()
        server.join()
    ledger.close()
    others = []
    for name in sys.argv[1:]:
        loader.load(getattr(programs, name), directory, timeout_s=240.0).close()
        others.append(name)
    iterator = task_iterator.load(machine.MACHINES[platform.machine()])
    threads = len(iterator.read(os.getpid()))
    iterator.close()
    told = {
        "kernel": platform.release(),
        "rung": loaded.rung,
        "load_ms": round(load_ms),
        "requests": [(each.method, each.path, each.request_id) for each in flights],
        "others_loaded": others,
        "threads_read": threads,
        "proc": os.path.exists(Host().proc("self")),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
