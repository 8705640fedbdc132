"""Messages, and what every channel offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from lookout.errors import LookoutRuntimeError
from lookout.v1.notifications_pb2 import NotificationEvent


class DeliveryError(LookoutRuntimeError):
    """A message did not arrive; the text says why and holds no secret.

    Args:
        text: Why.
        final: No later attempt can succeed.
    """

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


@dataclass(frozen=True, slots=True)
class Message:
    """What is delivered.

    Attributes:
        id: Stable over attempts.
        event: What happened, with a sentence and links.
        time_ms: When it happened, Unix milliseconds.
    """

    id: str
    event: NotificationEvent
    time_ms: int


class Channel(ABC):
    """Delivers messages to one target. One thread calls it; its calls end within seconds."""

    #: whether people read it: many messages at a time become one that counts them
    grouped: ClassVar[bool] = False
    #: whether it stays connected while there is nothing to say
    lasting: ClassVar[bool] = False

    @abstractmethod
    def send(self, message: Message) -> None:
        """Deliver a message, and return once the target has it.

        Raises:
            DeliveryError: It did not arrive.
        """

    def send_group(self, messages: list[Message]) -> None:
        """Deliver several messages as one; only where `grouped`.

        Raises:
            DeliveryError: It did not arrive.
        """
        raise NotImplementedError

    def keep(self) -> None:
        """Connect where it is not connected; only where `lasting`.

        Raises:
            DeliveryError: The target does not answer.
        """
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most channels hold nothing
        """Let go of connections."""
