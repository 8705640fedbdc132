"""Brokers at which notifications left retained messages, which are taken back when a notification is
removed."""

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
    """The places where notifications left something, as committed. Only one thread calls it.

    A place is committed before its notification connects. It is forgotten only once everything was taken
    back, also if another process does that.

    Args:
        give_up_s: Seconds after which a broker that does not answer is given up.
        clock: Monotonic seconds.
    """

    def __init__(self, give_up_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._give_up_s, self._clock = give_up_s, clock
        self._committed: dict[str, Notification] = {}
        self._left: dict[str, tuple[float, float]] = {}  # since when, and when it is tried again

    def restore(self, key: str, notification: Notification | None) -> None:
        """Restore the place in a record of state; None: the record was deleted."""
        if notification is None:
            self._committed.pop(key, None)
        else:
            self._committed[key] = notification

    def clear(self) -> None:
        """Forget everything, before committed records are restored."""
        self._committed.clear()
        self._left.clear()

    def added(self, current: Mapping[str, Notification]) -> dict[str, Notification]:
        """Return new places, which must be committed.

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
        """Return places that no notification uses any more.

        Args:
            current: Notifications that stay connected, by id.

        Returns:
            What must be taken back now, by key, and what was tried for too long and is given up.
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
        """Forget a place where nothing is left or nothing more can be done; return whose it was."""
        self._left.pop(key, None)
        return self._committed.pop(key, None)


def _lean(notification: Notification) -> Notification:
    """The part of a notification that is needed to take back what it left; not a token, whose file is
    removed."""
    lean = Notification(id=notification.id, mqtt=notification.mqtt)
    lean.mqtt.ClearField("token_file")
    return lean


def is_key(key: str) -> bool:
    """Whether a record of state is about a place."""
    return key.startswith(_PREFIX)


def key_of(notification: Notification) -> str:
    """The key of a notification's place and of its record of state."""
    return f"{_PREFIX}{stable_id(notification.id, *place_of(notification.mqtt))}"


def place_of(target: Mqtt) -> tuple[str, int, str, str]:
    """Where a notification's entities are; equal for two notifications that announce the same ones."""
    return target.host, target.port, target.topic or "lookout", target.discovery or "homeassistant"
