"""Waiting for what a service depends on, for as long as `start_timeout_s` allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaException
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from lookout.errors import StartupError
from lookout.runtime.worker.settings import ServiceSettings

#: one call to Kafka at start-up; a broker that starts just then is asked again
CALL_S = 5.0

R = TypeVar("R")


class NotReadyError(Exception):
    """A dependency is not there yet."""


def retry_until(ask: Callable[[], R], settings: ServiceSettings, what: str) -> R:
    """The answer of `ask` as soon as it has one.

    Raises:
        StartupError: "`what`: why" when it has none in time.
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
