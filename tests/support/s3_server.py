"""A server that speaks S3 (moto's), as a process of its own."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

# moto takes any; a client needs some.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


class S3Server:
    """One server that runs."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def make(self, bucket: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{bucket}", method="PUT"), timeout=30):
            pass

    def names(self, bucket: str) -> list[str]:
        return sorted(meta["path"] for page in self._open(bucket).list() for meta in page)

    def read(self, bucket: str, name: str) -> bytes:
        return bytes(self._open(bucket).get(name).bytes())

    def _open(self, bucket: str) -> Any:
        store = importlib.import_module("obstore.store")
        return store.S3Store(bucket, endpoint=self.endpoint, client_options={"allow_http": True})


@contextlib.contextmanager
def s3_server(port: int = 0) -> Iterator[S3Server]:
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environment = {**os.environ, **CREDENTIALS}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"Running on (http://\S+)", line):
                    break
            else:
                raise RuntimeError("moto's server did not start")
            yield S3Server(found[1])
        finally:
            process.kill()
