"""The root of Lookout's errors, and those of services by what has to happen next."""

from __future__ import annotations


class LookoutError(Exception):
    """Every error that Lookout raises on purpose; its message names what, where and why."""


class LookoutRuntimeError(LookoutError):
    """Base of the runtime's errors."""


class StartupError(LookoutRuntimeError):
    """The service cannot start; the message names the setting and what to do."""


class FencedError(LookoutRuntimeError):
    """Another instance took over this one's identity: this process must end."""


class BadRecordError(LookoutRuntimeError):
    """The record can never be processed: it goes to the dead letters.

    Raise it before changing the camera's state. `reason` is a short word for machines (it becomes a header
    and a metric label), `detail` a sentence for people.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class TransientError(LookoutRuntimeError):
    """Something this record needs is away for now (a store, a peer): this camera tries again in place.

    Raise it before changing the camera's state. Other cameras go on; only the commits of the camera's
    partition wait.

    Args:
        message: what is away, for people.
        give_up_s: seconds from the record's first try after which it becomes a dead letter `unavailable`
            (`Handler.rejected` may add an outcome); None: `LOOKOUT_RETRY_LIMIT_S`. Time in which Kafka is
            away does not count.
    """

    def __init__(self, message: str = "", give_up_s: float | None = None) -> None:
        super().__init__(message)
        self.give_up_s = give_up_s


class DeviceFailedError(LookoutRuntimeError):
    """The device that computes fails (a CUDA error, no memory left at the smallest batch).

    This says nothing about the record, so no outcome and no dead letter is committed for it. The worker tries
    the record again in place, not ready, for `LOOKOUT_DEVICE_RETRY_S`; then the process ends with exit code 4
    and is started again with a fresh device context. The camera's state is loaded again before each try.
    """


class RecordsGoneError(LookoutRuntimeError):
    """Records that a checkpoint points to are no longer in the topic: its retention is too short."""
