"""Waits at start-up for a service's dependencies, for at most `start_timeout_s`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaException
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from lookout.errors import StartupError
from lookout.runtime.worker.settings import ServiceSettings

#: seconds for one call to Kafka at start-up; calls are repeated, because the broker may still be starting
CALL_S = 5.0

R = TypeVar("R")


class NotReadyError(Exception):
    """A dependency is not available yet."""


def retry_until(ask: Callable[[], R], settings: ServiceSettings, what: str) -> R:
    """Call `ask` until it succeeds, and return its answer.

    Raises:
        StartupError: `ask` did not succeed within `start_timeout_s`; the message is `what` and the last
            error.
    """
    try:
        for attempt in Retrying(
            stop=stop_after_delay(settings.start_timeout_s),
            wait=wait_exponential_jitter(multiplier=0.1, max=2.0),
            retry=retry_if_exception_type((NotReadyError, KafkaException)),
        ):
            with attempt:
                return ask()
    except RetryError as error:
        raise StartupError(f"{what}: {error.last_attempt.exception()}") from error
    raise AssertionError("unreachable")
