"""Where copies go: S3 and what speaks like it. Alone imports obstore (extra `[copy]`).

obstore works in threads of its own: nothing here blocks the event loop, however long a server is silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import S3Store

from freezeframe.agentd.config import Copy
from freezeframe.agentd.errors import StoreFailedError
from freezeframe.agentd.host.text import escape

_CLIENT: Mapping[str, timedelta] = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=60)}
# The copier tries again itself, and says so.
_RETRIES: Mapping[str, Any] = {"max_retries": 1, "retry_timeout": timedelta(seconds=20)}
_CREDENTIALS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the daemon's environment, or the role of the instance"
_LONG = 400


class Bucket:
    """One place for copies."""

    def __init__(self, copy: Copy) -> None:
        """Nothing is asked yet."""
        self._copy = copy
        self._opened: Any = None

    async def put(self, name: str, data: bytes) -> None:
        """Write one object, whole or not at all. Raises StoreFailedError."""
        try:
            if self._opened is None:
                # This reads the host's certificates.
                self._opened = await asyncio.to_thread(self._open)
            await obstore.put_async(self._opened, name, data, use_multipart=False)
        except Exception as error:  # What a library in another language raises is its own affair.
            # Behind that stands how the library's own objects look.
            said = " ".join(str(error).partition("Debug source:")[0].split())
            said = escape(said.encode(), _LONG)
            raise StoreFailedError(f"copying {name} to {self._copy.to}: {said}", self._hint(error)) from error

    def _hint(self, error: Exception) -> str:
        if isinstance(error, FileNotFoundError):
            return "make the bucket, or correct copy.to"
        if isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)):
            return f"look at the rights there, and at {_CREDENTIALS}"
        return f"look at copy.to, copy.endpoint, the way there, and {_CREDENTIALS}"

    def _open(self) -> Any:
        copy = self._copy
        options = {name: value for name, value in (("endpoint", copy.endpoint), ("region", copy.region)) if value}
        client: Any = {**_CLIENT, "allow_http": copy.endpoint.startswith("http://")}
        retries: Any = _RETRIES
        return S3Store.from_url(copy.to, client_options=client, retry_config=retries, **options)  # type: ignore[arg-type]
