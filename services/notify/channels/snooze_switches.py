"""Home Assistant switches that snooze watches through the gateway, with a token's rights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from queue import Empty, SimpleQueue
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

from lookout.runtime.net.fetch import UriFetcher
from lookout.runtime.observe import logs
from lookout.services.notify.channels.posting import request
from lookout.services.notify.messages import DeliveryError
from lookout.services.notify.settings import MESSAGE_S
from lookout.text import clean
from lookout.v1.actions_pb2 import Snooze
from lookout.wire import names_id, stable_id, to_json

ON: Final = "ON"
OFF: Final = "OFF"
#: how long a switch snoozes a watch, unless somebody ends the snooze earlier
SNOOZE: Final = timedelta(hours=24)
_BODY: Final = 16 << 20
#: maximum number of commands queued between two calls of `turn`, in case a sender repeats commands without a
#: pause
_COMMANDS: Final = 100

Publish = Callable[[str, bytes], None]
"""Publishes a retained message; an empty payload removes the topic's message."""


@dataclass(frozen=True, slots=True)
class Switch:
    """The state of a watch that can be snoozed.

    Attributes:
        watch: The watch's id.
        question: The watch's question.
        is_enabled: Whether the watch is enabled.
        is_snoozed: Whether the watch is paused until a set time.
    """

    watch: str
    question: str
    is_enabled: bool
    is_snoozed: bool

    @classmethod
    def of(cls, view: Mapping[str, Any]) -> Self:
        """Build the switch from the gateway's JSON for a watch (`WatchView`).

        Raises:
            KeyError: A field is missing.
        """
        watch = view["watch"]
        return cls(watch["id"], watch.get("question", ""), view["enabled"], bool(view.get("snoozed_until")))


class WatchSwitches:
    """Reads and snoozes, through the gateway, the watches that a token allows.

    Args:
        url: URL of the gateway.
        token: The token, whose rights decide which watches can be seen and snoozed.
        patterns: Ids or patterns of the watches that get a switch; empty: all.
    """

    def __init__(self, url: str, token: str, patterns: Iterable[str]) -> None:
        self._url, self._patterns = url.rstrip("/"), list(patterns)
        self._headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        # Any address is allowed, because it comes from the operator's settings and not from a notification.
        host = urlsplit(url).hostname or ""
        self._allowed = UriFetcher(("http", "https"), (host,), ("0.0.0.0/0", "::/0"), timeout_s=MESSAGE_S)

    def views(self) -> dict[str, Switch]:
        """Return the watches that can be snoozed, by id. Watches from Kubernetes resources are omitted,
        because only kubectl can change them.

        Raises:
            DeliveryError: The gateway does not answer, or rejects the token.
        """
        try:
            listed = json.loads(self._call("GET", "/v1/watches"))["watches"]
            views = [Switch.of(view) for view in listed if not view.get("read_only")]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DeliveryError(
                f"{self._url}/v1/watches did not return a list of watches: {error!r}"
            ) from error
        return {
            view.watch: view
            for view in views
            if not self._patterns or any(names_id(pattern, view.watch) for pattern in self._patterns)
        }

    def snooze(self, watch: str) -> None:
        """Snooze a watch for a day.

        Raises:
            DeliveryError: The gateway rejects the request, or does not answer.
        """
        body = Snooze()
        body.until.FromDatetime(datetime.now(UTC) + SNOOZE)
        self._call("POST", f"/v1/watches/{quote(watch, safe='')}/snooze", to_json(body))

    def wake(self, watch: str) -> None:
        """Enable a snoozed watch again.

        Raises:
            DeliveryError: The gateway rejects the request, or does not answer.
        """
        self._call("POST", f"/v1/watches/{quote(watch, safe='')}/enable")

    def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        host, status, answer = request(
            self._allowed, self._url + path, self._headers, body, method=method, limit=_BODY
        )
        if status == 200:
            return answer
        try:
            reason = str(json.loads(answer)["detail"])
        except (KeyError, TypeError, ValueError):
            reason = "no reason is given"
        raise DeliveryError(f"{host} answers {method} {path} with status {status}: {clean(reason, 200)}")


class SnoozeSwitches:
    """Announces a switch for each watch, publishes its state, and carries out its commands.

    Args:
        watches: The watches, through the gateway; None: announce no switches, and remove earlier ones.
        topic: Prefix of the state topics.
        discovery: Prefix of the discovery topics.
        name: The client's name, which distinguishes its switches from those of other notifications.
    """

    def __init__(self, watches: WatchSwitches | None, topic: str, discovery: str, name: str) -> None:
        self._watches, self._name, self._discovery = watches, name, discovery
        self._base = f"{topic}/{name}/snooze"
        self._log = logs.get("notify")
        self._standing: set[str] = set()  # keys of the switches that the broker retains
        self._states: dict[str, tuple[bytes, bytes]] = {}  # last published discovery and state, by key
        self._availability = b""  # last published
        self._commands: SimpleQueue[tuple[str, str]] = SimpleQueue()

    @property
    def subscriptions(self) -> list[str]:
        """Topic filters to subscribe to, for earlier states and for commands."""
        return [f"{self._base}/+/state", f"{self._base}/+/set"]

    @property
    def availability(self) -> str:
        """The topic that says whether the gateway answers."""
        return f"{self._base}/availability"

    def forget(self) -> None:
        """Forget what an earlier connection published."""
        self._states.clear()
        self._availability = b""

    def take(self, topic: str, payload: bytes, retained: bool) -> None:
        """Process a message from the broker. If it is a command, queue it for `turn`, which carries it out on
        another thread.
        """
        key, _, kind = topic.removeprefix(f"{self._base}/").partition("/")
        if kind == "state" and retained and payload:
            self._standing.add(key)
        # Retained commands are ignored, because they may be of any age and would be carried out at each
        # connection.
        elif kind == "set" and not retained and self._commands.qsize() < _COMMANDS:
            self._commands.put((key, payload.decode(errors="replace").strip()))

    def has_work(self) -> bool:
        """Return whether a command is waiting."""
        return not self._commands.empty()

    def turn(self, availability: str, publish: Publish) -> None:
        """Carry out waiting commands, and publish the switches that changed.

        Args:
            availability: Topic that says whether the service is connected.
            publish: Publishes a retained message.

        Raises:
            DeliveryError: The broker does not answer.
        """
        try:
            views = {} if self._watches is None else self._watches.views()
            if self._watches is not None and self._obey(views):
                views = self._watches.views()
        except DeliveryError as error:
            self._log.warning("watches cannot be snoozed", error=str(error))
            self._say(b"offline", publish)
            return
        if self._watches is not None:
            self._say(b"online", publish)
        current = {self._key(watch): view for watch, view in views.items()}
        for key in sorted(self._standing - current.keys()):
            publish(f"{self._discovery}/switch/{_unique(key)}/config", b"")
            publish(f"{self._base}/{key}/state", b"")
            self._standing.discard(key)
            self._states.pop(key, None)
        for key, view in current.items():
            config = json.dumps(switch(self._base, key, availability, view)).encode()
            state = (ON if view.is_snoozed else OFF).encode()
            if self._states.get(key) != (config, state):
                publish(f"{self._discovery}/switch/{_unique(key)}/config", config)
                publish(f"{self._base}/{key}/state", state)
                self._states[key] = config, state
                self._standing.add(key)

    def _say(self, availability: bytes, publish: Publish) -> None:
        """Publish whether the gateway answers, if this has changed."""
        if availability != self._availability:
            publish(self.availability, availability)
            self._availability = availability

    def _obey(self, views: Mapping[str, Switch]) -> bool:
        """Carry out the waiting commands; return whether there were any."""
        assert self._watches is not None
        newest: dict[str, str] = {}
        while True:
            try:
                key, command = self._commands.get_nowait()
            except Empty:
                break
            newest[key] = command
        for watch, view in views.items():
            command = newest.get(self._key(watch), "")
            try:
                # A watch that somebody disabled stays disabled.
                if command == ON and view.is_enabled:
                    self._watches.snooze(watch)
                elif command == OFF and view.is_snoozed:
                    self._watches.wake(watch)
            except DeliveryError as error:
                self._log.warning(
                    "a command of a Home Assistant switch failed", watch=watch, error=str(error)
                )
            if command:  # publish the actual state again, even if unchanged
                self._states.pop(self._key(watch), None)
        return bool(newest)

    def _key(self, watch: str) -> str:
        return stable_id("mqtt-snooze", self._name, watch)[:16]


def switch(base: str, key: str, availability: str, view: Switch) -> dict[str, Any]:
    """Return the Home Assistant discovery message for a watch's switch.

    Args:
        base: Prefix of the switches' topics.
        key: The watch's key.
        availability: Topic that says whether the service is connected.
        view: The watch.
    """
    return {
        "unique_id": _unique(key),
        "name": f"Snooze: {clean(view.question or view.watch, 100)}",
        "icon": "mdi:sleep",
        "state_topic": f"{base}/{key}/state",
        "command_topic": f"{base}/{key}/set",
        "payload_on": ON,
        "payload_off": OFF,
        "qos": 1,
        "availability": [{"topic": availability}, {"topic": f"{base}/availability"}],
        "availability_mode": "all",
        "device": {"identifiers": [base], "name": "Lookout watches", "manufacturer": "Lookout"},
        "origin": {"name": "Lookout"},
    }


def _unique(key: str) -> str:
    return f"lookout_{key}_snooze"
