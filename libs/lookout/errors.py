"""The base of Lookout's errors, and errors of services, classified by what must happen next."""

from __future__ import annotations


class LookoutError(Exception):
    """Base of all errors that Lookout raises on purpose; the message says what, where and why."""


class LookoutRuntimeError(LookoutError):
    """Base of the runtime's errors."""


class StartupError(LookoutRuntimeError):
    """The service cannot start; the message names the setting and what to do."""


class FencedError(LookoutRuntimeError):
    """Another instance took over this instance's identity, so this process must end."""


class BadRecordError(LookoutRuntimeError):
    """The record can never be processed, so it becomes a dead letter.

    Raise it before changing the camera's state. `reason` is a short identifier (it becomes a header and a
    metric label), `detail` a sentence for people.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class TransientError(LookoutRuntimeError):
    """Something that this record needs is unavailable for now (a store, a peer), so the record is retried in
    place.

    Raise it before changing the camera's state. Other cameras continue; only the commits of the camera's
    partition wait.

    Args:
        message: what is unavailable, for people.
        give_up_s: seconds, from the record's first attempt, after which it becomes a dead letter
            `unavailable` (`Handler.rejected` may add an outcome); None: `LOOKOUT_RETRY_LIMIT_S`. Time without
            Kafka does not count.
    """

    def __init__(self, message: str = "", give_up_s: float | None = None) -> None:
        super().__init__(message)
        self.give_up_s = give_up_s


class DeviceFailedError(LookoutRuntimeError):
    """The compute device failed (a CUDA error, or out of memory at the smallest batch).

    The record is not to blame, so neither an outcome nor a dead letter is committed for it. The worker
    retries the record in place for ten seconds, and is not ready during that time. Then the process ends with
    exit code 4 and is restarted with a fresh device context. The camera's state is loaded again before each
    attempt.
    """


class RecordsGoneError(LookoutRuntimeError):
    """Records to which a checkpoint refers are no longer in the topic, because its retention is too short."""
