"""Logs: structlog to stderr, one JSON object a line when stderr is no terminal.

Whoever reads stderr may be stuck (a journal on a dead disk), and the front must answer all the same: lines go through a
bounded queue to a thread that writes. When the queue is full a line is dropped, and the next one that gets through
says how many were.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
import time
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol, TextIO, cast

import structlog

from freezeframe.agentd.host.text import escape

Logger = structlog.typing.FilteringBoundLogger

_QUEUE_LINES = 10_000
_TEXT_BYTES = 4096


class Stream(Protocol):
    """Where lines go."""

    def write(self, text: str, /) -> int:
        """Take a line."""

    def flush(self) -> object:
        """Pass on what was taken."""


class LogWriter:
    """Text stream whose writes never block: a thread does them."""

    def __init__(self, stream: Stream, queue_lines: int = _QUEUE_LINES) -> None:
        """Write to `stream`."""
        self._stream = stream
        self._queue: queue.Queue[str] = queue.Queue(queue_lines)
        self._dropped = 0
        threading.Thread(target=self._run, name="log-writer", daemon=True).start()

    def write(self, text: str) -> int:
        """Queue a line, or count it as dropped."""
        try:
            self._queue.put_nowait(text)
        except queue.Full:
            self._dropped += 1
        return len(text)

    def flush(self) -> None:
        """Do nothing: `drain` waits."""

    def drain(self, timeout_s: float) -> bool:
        """Wait until all is written; False when it is not within `timeout_s`. For the end of the process."""
        give_up = time.monotonic() + timeout_s
        while self._queue.unfinished_tasks and time.monotonic() < give_up:
            time.sleep(0.005)
        return not self._queue.unfinished_tasks

    def _run(self) -> None:
        while True:
            line = self._queue.get()
            # A closed or broken stderr must not end the thread: lines are lost, nothing else is.
            with contextlib.suppress(OSError, ValueError):
                dropped, self._dropped = self._dropped, 0
                if dropped:
                    self._stream.write(f'{{"event": "log lines dropped", "count": {dropped}}}\n')
                self._stream.write(line)
                self._stream.flush()
            self._queue.task_done()


def _escaped(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Escape control characters everywhere: no text can begin a line of its own or steer a terminal."""
    return {key: _plain(value) for key, value in event.items()}


def _plain(value: object) -> object:
    if isinstance(value, str):
        # A traceback of ours has lines; each of them is escaped.
        lines = value.split("\n") if value.startswith("Traceback ") else [value]
        return "\n".join(escape(line.encode("utf-8", "surrogatepass"), _TEXT_BYTES) for line in lines)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _processors(*, terminal: bool) -> list[structlog.typing.Processor]:
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=False) if terminal else structlog.processors.JSONRenderer(default=str)
    )
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _escaped,
        renderer,
    ]


def _filter(level: str) -> type[Any]:
    return structlog.make_filtering_bound_logger(getattr(logging, level.upper()))


def make_logger(stream: Any, *, level: str = "info", terminal: bool = False) -> Logger:
    """Make a logger that writes to `stream`; JSON lines unless it is a terminal."""
    return cast(
        "Logger",
        structlog.wrap_logger(
            structlog.WriteLogger(cast("TextIO", stream)),
            processors=_processors(terminal=terminal),
            wrapper_class=_filter(level),
        ),
    )


def configure(level: str) -> None:
    """Set up structlog.get_logger() for a process that forks: written to stderr at once, no thread."""
    structlog.configure(
        processors=_processors(terminal=sys.stderr.isatty()),
        wrapper_class=_filter(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )


def start(level: str) -> tuple[Logger, LogWriter]:
    """Log to the stderr of a process that must never block; the writer is drained before the process ends."""
    writer = LogWriter(sys.stderr)
    logger = make_logger(writer, level=level, terminal=sys.stderr.isatty())
    logging.basicConfig(handlers=[_Libraries(logger)], level=logging.WARNING, force=True)
    return logger, writer


class _Libraries(logging.Handler):
    """Takes what libraries (gRPC, asyncio) log: it must not block, and must not break lines, either."""

    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        self._logger.warning("library", name=record.name, message=record.getMessage(), exc_info=record.exc_info)
