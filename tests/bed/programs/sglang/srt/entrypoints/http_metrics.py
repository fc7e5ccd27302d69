"""HTTP metrics as an ASGI middleware; a request stops being active when its response headers go out, as in SGLang."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Gauge

requests_total = Counter("sglang:http_requests_total", "Requests", ["endpoint", "method"])
responses_total = Counter("sglang:http_responses_total", "Responses", ["endpoint", "status_code", "method"])
requests_active = Gauge(
    "sglang:http_requests_active", "Active requests", ["endpoint", "method"], multiprocess_mode="livesum"
)


class TrackResponse:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        endpoint, method = scope["path"], scope["method"]
        active = requests_active.labels(endpoint=endpoint, method=method)
        requests_total.labels(endpoint=endpoint, method=method).inc()
        active.inc()
        headers_sent = False

        async def track(message: dict[str, Any]) -> None:
            nonlocal headers_sent
            if message["type"] == "http.response.start" and not headers_sent:
                headers_sent = True
                active.dec()
                responses_total.labels(endpoint=endpoint, status_code=str(message["status"]), method=method).inc()
            await send(message)

        try:
            await self.app(scope, receive, track)
        finally:
            if not headers_sent:
                active.dec()
