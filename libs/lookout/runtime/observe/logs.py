"""Structured logs: one JSON object per line on stderr, with stage, instance, camera, offset and trace."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, cast

import structlog
from opentelemetry import trace

from lookout.text import clean_event

Event = MutableMapping[str, Any]
#: maximum number of kinds of messages that are remembered at a time
_KINDS = 1000


class _Lines(structlog.PrintLogger):
    """Prints lines. A line that cannot be written (full disk) is dropped, because logging must not end a
    thread.
    """

    def msg(self, message: str) -> None:
        """Print a line."""
        with suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = fatal = failure = err = error = critical = exception = msg


def setup(stage: str, instance: str, level: str = "INFO", human: bool | None = None) -> None:
    """Configure structlog and the standard library's logging for this process.
    `human`: whether to print plain lines instead of JSON; unset: only if stderr is a terminal."""
    human = sys.stderr.isatty() if human is None else human
    renderer: Any = structlog.dev.ConsoleRenderer() if human else structlog.processors.JSONRenderer()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _trace_ids,
        _constant({"stage": stage, "instance": instance}),
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, clean_event, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        # `sys.stderr` is looked up for each line, because a caller may replace it or close the earlier
        # stream.
        logger_factory=lambda *_: _Lines(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                clean_event,
                renderer,
            ],
        )
    )
    handler.addFilter(Quiet())  # gRPC writes a traceback for every request that is not a valid message
    root = logging.getLogger()
    root.handlers = [handler]
    # Libraries log every connection at INFO.
    root.setLevel(max(logging.getLevelName(level), logging.WARNING))


def get(name: str = "") -> structlog.stdlib.BoundLogger:
    """Return a logger; `bind` it, or use `structlog.contextvars.bound_contextvars`."""
    return cast(
        structlog.stdlib.BoundLogger, structlog.get_logger(log=name) if name else structlog.get_logger()
    )


def _constant(values: dict[str, str]) -> Callable[[Any, str, Event], Event]:
    def add(_logger: Any, _method: str, event: Event) -> Event:
        for key, value in values.items():
            event.setdefault(key, value)
        return event

    return add


def _trace_ids(_logger: Any, _method: str, event: Event) -> Event:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event


class Quiet(logging.Filter):
    """Lets one message of each kind pass per `seconds`, so that a client that keeps reconnecting does not
    flood the log.
    """

    def __init__(self, seconds: float = 30.0) -> None:
        super().__init__()
        self._seconds = seconds
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log this message."""
        # Only the first 12 characters count, because librdkafka appends numbers and addresses that differ
        # each time.
        kind = f"{record.name}:{record.levelno}:{str(record.msg)[:12]}"
        now = time.monotonic()
        if now - self._last.get(kind, -self._seconds) < self._seconds:
            return False
        if len(self._last) >= _KINDS:
            self._last.clear()
        self._last[kind] = now
        return True


def client_logger(name: str) -> logging.Logger:
    """Return the logger for a Kafka client."""
    logger = logging.getLogger(f"kafka.{name}")
    if not any(isinstance(installed, Quiet) for installed in logger.filters):
        logger.addFilter(Quiet())
    return logger
