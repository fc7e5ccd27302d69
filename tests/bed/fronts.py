"""Beds with something in front of the router: nginx as it comes, or another router.

with NginxBed.start(wedge="decode-silent") as bed: ...; bed.front_pids
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.bed import processes
from tests.bed.bed import Bed
from tests.bed.routers import ROUTERS
from tests.bed.stack import PYTHON_MIB, ROUTER_MIB, START_TIMEOUT_S

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")
# It speaks HTTP/1.0 to the router, a connection per request, as it does unless it is told otherwise.
_CONFIGURATION = """
daemon off; worker_processes 1; user root; pid {folder}/nginx.pid; error_log stderr;
events {{ worker_connections 512; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
    uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass {url}; proxy_buffering off; proxy_read_timeout 3600s; }}
    }}
}}
"""


class _FrontedBed(Bed):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        (self.front_port, self._front_metrics_port) = processes.free_ports(2)

    @property
    def entry_url(self) -> str:
        return f"http://127.0.0.1:{self.front_port}"

    @property
    def front_pid(self) -> int:
        """The front's first process."""
        return next(child.pid for child in self.children if child.name == "front")

    def _await_front(self, path: str) -> None:
        self.wait_for(
            "the front to answer", lambda: self._get(f"{self.entry_url}{path}") is not None, timeout_s=START_TIMEOUT_S
        )


class NginxBed(_FrontedBed):
    """harness > nginx > router > engines."""

    @property
    def worker_pid(self) -> int:
        """The process that has the connections."""
        children = Path(f"/proc/{self.front_pid}/task/{self.front_pid}/children").read_text().split()
        (worker,) = map(int, children)
        return worker

    def _start_front(self) -> None:
        assert NGINX is not None
        folder = self.run_dir / "nginx"
        folder.mkdir(exist_ok=True)
        text = _CONFIGURATION.format(folder=folder, port=self.front_port, url=self.url)
        (folder / "nginx.conf").write_text(text)
        self._spawn("front", [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")], PYTHON_MIB)
        self._await_front("/health")


class ChainedBed(_FrontedBed):
    """harness > router > router > engines: the first one takes the second for an engine."""

    def _start_front(self) -> None:
        router = ROUTERS["sglang-router"]
        command = [*router.start, "--host", "127.0.0.1", "--port", str(self.front_port), "--log-level", "info"]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(self._front_metrics_port)]
        command += ["--worker-startup-check-interval", "1", "--worker-urls", self.url]
        self._spawn("front", command, ROUTER_MIB, **router.env)
        self._await_front("/v1/models")
