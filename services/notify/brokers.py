"""Remembers the MQTT brokers with notifications' retained messages, which must be removed together with the
notification.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from lookout.v1.notifications_pb2 import Mqtt, Notification
from lookout.wire import stable_id

#: prefix of the keys of state records that are not about incidents
_PREFIX: Final = "broker "
#: seconds between attempts
_AGAIN_S: Final = 30.0


class Brokers:
    """The places (broker and topic prefixes) where notifications leave retained messages. For one thread.

    A place is committed before its notification connects, and forgotten only after its messages are removed,
    so that a later process can finish the removal.

    Args:
        give_up_s: Seconds of failed attempts after which a removal is given up.
        clock: Monotonic seconds.
    """

    def __init__(self, give_up_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._give_up_s, self._clock = give_up_s, clock
        self._committed: dict[str, Notification] = {}
        # By unused place: the times of the first attempt to clean up and of the next attempt.
        self._left: dict[str, tuple[float, float]] = {}

    def restore(self, key: str, notification: Notification | None) -> None:
        """Restore a place from its state record. None: the record was deleted."""
        if notification is None:
            self._committed.pop(key, None)
        else:
            self._committed[key] = notification

    def clear(self) -> None:
        """Forget everything, before committed records are restored."""
        self._committed.clear()
        self._left.clear()

    def added(self, current: Mapping[str, Notification]) -> dict[str, Notification]:
        """Add the places of new notifications; return these places by key, which the caller must commit.

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
        """Return the places that no notification uses any more and whose messages must be removed now.

        Args:
            current: Notifications that stay connected, by id.

        Returns:
            The places to clean up now, by key, and the former notifications of the places that are given up.
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
        """Forget a place that is clean or given up; return its former notification, None if the key is
        unknown.
        """
        self._left.pop(key, None)
        return self._committed.pop(key, None)


def _lean(notification: Notification) -> Notification:
    """Return the part of a notification that is needed to remove its retained messages. The token is omitted,
    because its file is deleted with the notification.
    """
    lean = Notification(id=notification.id, mqtt=notification.mqtt)
    lean.mqtt.ClearField("token_file")
    return lean


def is_key(key: str) -> bool:
    """Return whether a state record's key is that of a place."""
    return key.startswith(_PREFIX)


def key_of(notification: Notification) -> str:
    """Return the key of a notification's place, which is also the key of its state record."""
    return f"{_PREFIX}{stable_id(notification.id, *place_of(notification.mqtt))}"


def place_of(target: Mqtt) -> tuple[str, int, str, str]:
    """Return broker host, port, topic prefix and discovery prefix, which are equal for two notifications that
    announce the same entities.
    """
    return target.host, target.port, target.topic or "lookout", target.discovery or "homeassistant"
