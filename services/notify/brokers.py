"""Brokers at which notifications left retained messages: those of a removed one are taken back, later too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from lookout.v1.notifications_pb2 import Mqtt, Notification
from lookout.wire import stable_id

#: begins the keys of records of state that are not about incidents
_PREFIX: Final = "broker "
#: seconds between attempts
_AGAIN_S: Final = 30.0


class Brokers:
    """Where notifications left something, as it is committed. One thread calls it.

    A place is committed before its notification connects, and forgotten once all was taken back, by the next
    process too.

    Args:
        give_up_s: Seconds after which a broker that does not answer is given up.
        clock: Monotonic seconds.
    """

    def __init__(self, give_up_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._give_up_s, self._clock = give_up_s, clock
        self._committed: dict[str, Notification] = {}
        self._left: dict[str, tuple[float, float]] = {}  # since when, and when it is tried again

    def restore(self, key: str, notification: Notification | None) -> None:
        """Put back what a record of state says; None: it is deleted."""
        if notification is None:
            self._committed.pop(key, None)
        else:
            self._committed[key] = notification

    def clear(self) -> None:
        """Forget everything, before what is committed is put back."""
        self._committed.clear()
        self._left.clear()

    def added(self, current: Mapping[str, Notification]) -> dict[str, Notification]:
        """Places that are new, to be committed.

        Args:
            current: Notifications that stay connected, by id.
        """
        places = {key_of(notification): notification for notification in current.values()}
        added = {
            key: _lean(notification) for key, notification in places.items() if key not in self._committed
        }
        self._committed.update(added)
        return added

    def due(self, current: Mapping[str, Notification]) -> tuple[dict[str, Notification], list[Notification]]:
        """Places that no notification has any more.

        Args:
            current: Notifications that stay connected, by id.

        Returns:
            What is to be taken back now, by key; and what was tried for too long, and is given up.
        """
        now, places = self._clock(), {key_of(notification) for notification in current.values()}
        due: dict[str, Notification] = {}
        given_up = []
        for key in self._committed.keys() - places:
            since, again = self._left.setdefault(key, (now, now))
            if now > since + self._give_up_s:
                given_up.append(self._committed[key])
            elif now >= again:
                self._left[key] = since, now + _AGAIN_S
                due[key] = self._committed[key]
        for key in self._left.keys() & places:
            del self._left[key]
        return due, given_up

    def forget(self, key: str) -> Notification | None:
        """Nothing is left at a place any more, or nothing can be done about it; returns whose it was."""
        self._left.pop(key, None)
        return self._committed.pop(key, None)


def _lean(notification: Notification) -> Notification:
    """What is needed to take back what it left: not a token, whose file goes with it."""
    lean = Notification(id=notification.id, mqtt=notification.mqtt)
    lean.mqtt.ClearField("token_file")
    return lean


def is_key(key: str) -> bool:
    """Whether a record of state is about a place."""
    return key.startswith(_PREFIX)


def key_of(notification: Notification) -> str:
    """The key of the place of a notification, of its record of state too."""
    return f"{_PREFIX}{stable_id(notification.id, *place_of(notification.mqtt))}"


def place_of(target: Mqtt) -> tuple[str, int, str, str]:
    """Where entities are: the same of two notifications that announce the same ones."""
    return target.host, target.port, target.topic or "lookout", target.discovery or "homeassistant"
