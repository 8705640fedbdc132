"""What can go wrong, by what has to happen next."""

from __future__ import annotations

from lookout.errors import LookoutError


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
    """Something this record needs is away for now (a store, a peer, a device): tried again in place, in
    order.

    Raise it before changing the camera's state.
    """


class RecordsGoneError(LookoutRuntimeError):
    """Records that a checkpoint points to are no longer in the topic: its retention is too short."""
