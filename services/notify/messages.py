"""Messages, and the interface of channels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lookout.errors import LookoutRuntimeError
from lookout.text import clean
from lookout.v1.notifications_pb2 import Notification, NotificationEvent

#: most cameras that a message about many incidents names
_NAMED: Final = 5


class DeliveryError(LookoutRuntimeError):
    """A message did not arrive; the text says why and holds no secret.

    Args:
        text: The reason.
        final: No later attempt can succeed.
    """

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


@dataclass(frozen=True, slots=True)
class Message:
    """What is delivered.

    Attributes:
        id: The same at every attempt.
        event: What happened, with a sentence and links.
        time_ms: When it happened, Unix milliseconds.
    """

    id: str
    event: NotificationEvent
    time_ms: int


class Channel(ABC):
    """Delivers messages to one target. Only one thread calls it; its calls return within seconds."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Deliver a message, and return once the target has it.

        Raises:
            DeliveryError: It did not arrive.
        """

    def close(self) -> None:  # noqa: B027 - most channels hold nothing
        """Close connections."""


class GroupingChannel(Channel):
    """A channel for people: a flood of messages becomes one that counts them."""

    @abstractmethod
    def send_group(self, messages: list[Message]) -> None:
        """Deliver several messages as one.

        Raises:
            DeliveryError: It did not arrive.
        """


class ConnectedChannel(Channel):
    """A channel that stays connected while there is nothing to deliver."""

    @abstractmethod
    def keep(self) -> None:
        """Connect if it is not connected.

        Raises:
            DeliveryError: The target does not answer.
        """

    def has_work(self) -> bool:
        """Whether `keep` has something to do at once."""
        return False

    def retire(self, others: Sequence[Notification] = ()) -> None:
        """Remove what the channel left at the target, because its notification was removed.

        Args:
            others: The remaining notifications, which keep what they publish at the same place.

        Raises:
            DeliveryError: The target does not answer.
        """


def summary(events: list[NotificationEvent], newest: NotificationEvent) -> str:
    """Summarise many events in one message: how many, of which cameras, and the newest one."""
    incidents = {event.alert.incident or event.action.incident for event in events}
    cameras = Counter(event.alert.camera or event.action.camera for event in events)
    named = ", ".join(clean(camera, 60) for camera, _ in cameras.most_common(_NAMED))
    rest_text = f" and {len(cameras) - _NAMED} more" if len(cameras) > _NAMED else ""
    first = f"{len(events)} messages about {len(incidents)} incidents of {named}{rest_text}. The newest:"
    return "\n".join([first, newest.text, *filter(None, [newest.console_url])])
