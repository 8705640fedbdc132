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

#: maximum number of cameras named in a summary
_NAMED: Final = 5


class DeliveryError(LookoutRuntimeError):
    """A message was not delivered; the text says why and contains no secret.

    Args:
        text: The reason.
        final: Whether no later attempt can succeed.
    """

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


@dataclass(frozen=True, slots=True)
class Message:
    """A message for one target.

    Attributes:
        id: An id that stays the same at every attempt.
        event: The event, with a sentence and links.
        time_ms: Time of the event, Unix milliseconds.
    """

    id: str
    event: NotificationEvent
    time_ms: int


class Channel(ABC):
    """Delivers messages to one target. For one thread. Calls return within seconds."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Deliver a message; return when the target has accepted it.

        Raises:
            DeliveryError: The message was not delivered.
        """

    def close(self) -> None:  # noqa: B027 - most channels hold nothing
        """Close connections."""


class GroupingChannel(Channel):
    """A channel for people, which can replace a flood of messages by one summary."""

    @abstractmethod
    def send_group(self, messages: list[Message]) -> None:
        """Deliver several messages as one summary.

        Raises:
            DeliveryError: The message was not delivered.
        """


class ConnectedChannel(Channel):
    """A channel that stays connected even when there is nothing to deliver."""

    @abstractmethod
    def keep(self) -> None:
        """Connect if necessary, and do the work that is due.

        Raises:
            DeliveryError: The target does not answer.
        """

    def has_work(self) -> bool:
        """Return whether `keep` should be called at once, because there is work."""
        return False

    def retire(self, others: Sequence[Notification] = ()) -> None:
        """Remove what the channel left at the target, because its notification was removed or changed.

        Args:
            others: The remaining notifications, whose messages at the same place stay.

        Raises:
            DeliveryError: The target does not answer.
        """


def summary(events: list[NotificationEvent], newest: NotificationEvent) -> str:
    """Summarise many events in one text: how many there are, of which cameras, and the newest one."""
    incidents = {event.alert.incident or event.action.incident for event in events}
    cameras = Counter(event.alert.camera or event.action.camera for event in events)
    named = ", ".join(clean(camera, 60) for camera, _ in cameras.most_common(_NAMED))
    rest_text = f" and {len(cameras) - _NAMED} more" if len(cameras) > _NAMED else ""
    first = f"{len(events)} messages about {len(incidents)} incidents of {named}{rest_text}. The newest:"
    return "\n".join([first, newest.text, *filter(None, [newest.console_url])])
