"""MQTT with Home Assistant discovery: incidents, their pictures, and switches that snooze watches."""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from lookout.rules.notifications import wants_incident
from lookout.runtime.net.fetch import UriFetcher
from lookout.runtime.net.guarded_resolving import guarded
from lookout.services.notify.brokers import place_of
from lookout.services.notify.channels.snooze_switches import OFF, ON, SnoozeSwitches, WatchSwitches
from lookout.services.notify.messages import ConnectedChannel, DeliveryError, Message
from lookout.services.notify.secrets import Secrets
from lookout.text import clean
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Mqtt, Notification, NotificationEvent
from lookout.wire import CAMERA_HEALTH, CAMERA_OFFLINE, WireError, from_json, stable_id, to_json

_PORT: Final = 1883
_TLS_PORT: Final = 8883
_QOS: Final = 1
#: keep-alive interval in seconds, after which a silent broker counts as disconnected
_KEEPALIVE_S: Final = 30
_GOODBYE_S: Final = 2.0
#: maximum number of passes over the broker's retained messages; the last pass must find nothing to remove
_PASSES: Final = 10
#: keys of a discovery message whose values are the entity's own retained topics
_OWN_PLACES: Final = ("state_topic", "json_attributes_topic", "image_topic")
#: payload that Home Assistant shows as an unknown state
_UNKNOWN: Final = "None"
#: reasons for closing an incident that set its state to off: the answer is no, or the schedule has ended
_SEEN_ENDS: Final = frozenset({"cleared", "schedule"})
_ONLINE: Final = "online"
_OFFLINE: Final = "offline"
#: watches whose incidents are faults of the camera itself, with the names that people see
_PROBLEMS: Final = {CAMERA_OFFLINE: "Offline", CAMERA_HEALTH: "Camera"}


class MqttChannel(ConnectedChannel):
    """Publishes each event, and the current states as retained messages for a Home Assistant that starts
    later.

    Args:
        target: The broker.
        secrets: The folder with the broker's password.
        allowed: Where messages may be sent.
        picture: Returns the bytes of an incident's picture, or None if it is not available.
        name: The notification's id, from which the MQTT client's name is derived.
        watches: The watches that may be snoozed; None: none may be.
        wanted: Returns whether the notification wants an event. For other events, only the camera's
            availability is published.
        trial: Whether this is an additional client for one test, which does not publish the service's
            availability.
    """

    def __init__(
        self,
        target: Mqtt,
        secrets: Secrets,
        allowed: UriFetcher,
        picture: Callable[[NotificationEvent], bytes | None],
        name: str,
        *,
        watches: WatchSwitches | None = None,
        wanted: Callable[[NotificationEvent], bool] = lambda _: True,
        trial: bool = False,
    ) -> None:
        self._target, self._allowed, self._picture, self._wanted = target, allowed, picture, wanted
        self._topic, self._discovery = target.topic or "lookout", target.discovery or "homeassistant"
        self._password = secrets.read(target.password_file) if target.password_file else None
        self._authority = str(secrets.path(target.ca_file)) if target.ca_file else None
        self._notification, self._name, self._trial = name, client_name(name), trial
        self._switches = SnoozeSwitches(watches, self._topic, self._discovery, self._name)
        self._client: paho.Client | None = None
        self._connected = threading.Event()
        self._refusal = ""
        self._known: set[str] = set()  # entities that this connection has announced

    def send(self, message: Message) -> None:
        client = self._open()
        event = message.event
        try:
            if event.test:
                self._publish(client, f"{self._topic}/test", json.dumps({"text": event.text}).encode())
                return
            if event.alert.kind == Alert.KIND_REPORT:
                self._publish_data(client, message)
                return
            if not event.HasField("action"):
                self._publish_availability(client, event.alert)
            if self._wanted(event):
                self._announce(client, event)
                self._publish_event(client, message)
        except (OSError, ValueError, RuntimeError) as error:
            self.close()
            raise DeliveryError(f"{self._target.host}: {type(error).__name__}: {error}"[:300]) from error

    def keep(self) -> None:
        client = self._open()
        self._switches.turn(
            self._availability, lambda topic, payload: self._publish(client, topic, payload, retain=True)
        )

    def has_work(self) -> bool:
        return self._switches.has_work()

    def retire(self, others: Sequence[Notification] = ()) -> None:
        client = self._open()
        heirs = [heir for heir in others if heir.HasField("mqtt") and place_of(heir.mqtt) == self._place]
        # A broker may send retained messages in any order, and drop some if there are very many. So the
        # messages are read and removed repeatedly, until a pass finds nothing to change.
        for _ in range(_PASSES):
            changes = self._changes(self._retained(client), heirs)
            for place, payload in changes.items():
                self._publish(client, place, payload, retain=True)
            if not changes:
                break
        else:
            raise DeliveryError(
                f"{self._target.host}: the broker does not let this user remove retained messages"
            )
        for place in (self._availability, self._switches.availability):
            self._publish(client, place, b"", retain=True)
        self._client = None  # otherwise `close` would publish the availability again
        client.disconnect()
        client.loop_stop()

    def _retained(self, client: paho.Client) -> dict[str, bytes]:
        """Return the broker's retained discovery, attributes and availability messages, by topic.

        Once the broker has confirmed the subscription, this client publishes a message. When that message
        comes back, the broker has sent all retained messages.

        Raises:
            DeliveryError: The broker does not answer, or does not let this user read discovery topics.
        """
        end = f"{self._topic}/{self._name}/end"
        # This probe shows whether this user may read the discovery topics. If not, a broker may confirm the
        # subscription but send nothing, as if there were no messages. Home Assistant takes the empty probe as
        # the removal of an entity that does not exist.
        probe = f"{self._discovery}/sensor/{self._name}/config"
        retained: dict[str, bytes] = {}
        confirmed: SimpleQueue[int] = SimpleQueue()
        readable, ended = threading.Event(), threading.Event()

        def take(_client: Any, _data: Any, message: paho.MQTTMessage) -> None:
            if message.topic == probe:
                readable.set()
            elif message.topic == end:
                ended.set()
            elif message.retain:
                retained[message.topic] = bytes(message.payload)

        client.on_message = take
        client.on_subscribe = lambda _client, _data, number, *_: confirmed.put(number)
        own = (f"{self._topic}/+/{name}" for name in ("attributes", "availability"))
        filters = (f"{self._discovery}/+/+/config", *own, end)
        _, subscription = client.subscribe([(place, _QOS) for place in filters])
        with contextlib.suppress(Empty):
            while confirmed.get(timeout=self._allowed.timeout_s) != subscription:
                continue  # the confirmation of the switches' subscription
            self._publish(client, probe, b"")
            self._publish(client, end, b"")
            ended.wait(self._allowed.timeout_s)
        if not ended.is_set():
            raise DeliveryError(f"{self._target.host}: the broker does not confirm a subscription")
        if not readable.is_set():
            raise DeliveryError(
                f"{self._target.host}: the broker does not let this user read {self._discovery}/#, which is "
                "needed to find the entities; allow it, or remove the entities in Home Assistant"
            )
        return retained

    def _is_own(self, topic: str) -> bool:
        return topic.startswith(f"{self._topic}/")

    def _changes(self, retained: Mapping[str, bytes], heirs: Sequence[Notification]) -> dict[str, bytes]:
        """Return the messages (payload by topic) to publish so that no entity depends on this notification.

        If this notification was the last to announce an entity, the entity is handed over to one of `heirs`
        that was also told of its newest incident. If there is no such heir, empty messages remove the entity.
        Availability topics that no remaining entity uses are removed too.

        Args:
            retained: The broker's retained messages, payload by topic.
            heirs: Other notifications that publish under the same topics of the same broker.
        """
        changes: dict[str, bytes] = {}
        unused, used = set[str](), set[str]()  # availability topics of removed and of remaining entities
        for topic, payload in retained.items():
            try:
                config = json.loads(payload)
                announced = [str(place["topic"]) for place in config["availability"]]
            except (KeyError, TypeError, ValueError):
                continue
            if self._availability not in announced:
                used.update(announced)
                continue
            own = [str(config[name]) for name in _OWN_PLACES if name in config]
            base = own[0].rpartition("/")[0] if own else ""
            heir = _heir(retained.get(f"{base}/attributes", b""), heirs)
            if heir is None:
                changes |= dict.fromkeys((topic, *filter(self._is_own, own)), b"")
                unused.update(filter(self._is_own, announced))
                continue
            for place in config["availability"]:
                if place["topic"] == self._availability:
                    place["topic"] = availability_topic(self._topic, heir)
            used.update(announced)
            changes[topic] = json.dumps(config).encode()
        # Includes cameras whose availability is published but that have no entity.
        unused |= {topic for topic in retained if _is_of_camera(topic.removeprefix(f"{self._topic}/"))}
        return changes | dict.fromkeys(unused - used - {self._availability}, b"")

    def close(self) -> None:
        client, self._client = self._client, None
        self._known.clear()
        self._switches.forget()
        if client is not None:
            # Publish "offline" explicitly, because the broker sends the client's will only if the connection
            # breaks.
            if client.is_connected() and not self._trial:
                farewell = client.publish(self._availability, _OFFLINE.encode(), _QOS, retain=True)
                with contextlib.suppress(ValueError, RuntimeError):
                    farewell.wait_for_publish(_GOODBYE_S)
            client.disconnect()
            client.loop_stop()

    def _open(self) -> paho.Client:
        if self._client is not None and self._client.is_connected():
            return self._client
        self.close()
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"{self._name}-test" if self._trial else self._name,
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
        )
        if self._target.username:
            client.username_pw_set(self._target.username, self._password)
        if self._target.tls:
            client.tls_set(ca_certs=self._authority, cert_reqs=ssl.CERT_REQUIRED)
        if not self._trial:
            client.will_set(self._availability, _OFFLINE, _QOS, retain=True)
        self._connected.clear()
        self._refusal = ""
        client.on_connect = self._on_connect
        client.on_message = lambda _client, _data, message: self._switches.take(
            message.topic, bytes(message.payload), message.retain
        )
        port = self._target.port or (_TLS_PORT if self._target.tls else _PORT)
        client.connect_timeout = self._allowed.timeout_s
        try:
            with guarded(self._allowed):
                client.connect(self._target.host, port, _KEEPALIVE_S)
        except (OSError, ValueError) as error:
            raise DeliveryError(f"{self._target.host}:{port}: {error}") from error
        client.loop_start()
        self._client = client
        if not self._connected.wait(self._allowed.timeout_s) or self._refusal:
            self.close()
            raise DeliveryError(f"{self._target.host}:{port}: {self._refusal or 'no answer'}")
        if not self._trial:
            client.subscribe([(place, _QOS) for place in self._switches.subscriptions])
            self._publish(client, self._availability, _ONLINE.encode(), retain=True)
        return client

    @property
    def _availability(self) -> str:
        return availability_topic(self._topic, self._notification)

    @property
    def _place(self) -> tuple[str, int, str, str]:
        return place_of(self._target)

    def _on_connect(self, _client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._refusal = str(reason) if reason.is_failure else ""
        self._connected.set()

    def _publish(self, client: paho.Client, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish a message and wait until the broker confirms it.

        Raises:
            DeliveryError: The broker does not confirm the message.
        """
        info = client.publish(topic, payload, _QOS, retain=retain)
        info.wait_for_publish(self._allowed.timeout_s)
        if not info.is_published():
            self.close()
            raise DeliveryError(f"{self._target.host}: the broker does not confirm a message")

    def _announce(self, client: paho.Client, event: NotificationEvent) -> None:
        """Announce the entities of the event's camera and watch to Home Assistant, once per connection."""
        happened = event.action if event.HasField("action") else event.alert
        key = entity_key(happened.camera, happened.watch)
        if key in self._known:
            return
        for kind, config in discovery(
            self._topic, self._availability, happened.camera, happened.watch, happened.question
        ).items():
            topic = f"{self._discovery}/{kind}/{config['unique_id']}/config"
            self._publish(client, topic, json.dumps(config).encode(), retain=True)
        self._known.add(key)

    def _publish_availability(self, client: paho.Client, alert: Alert) -> None:
        if (availability := camera_availability(alert)) is not None:
            self._publish(client, camera_topic(self._topic, alert.camera), availability.encode(), retain=True)

    def _publish_event(self, client: paho.Client, message: Message) -> None:
        event = message.event
        happened = event.action if event.HasField("action") else event.alert
        base = f"{self._topic}/{entity_key(happened.camera, happened.watch)}"
        if not event.HasField("action"):
            state = state_of(event.alert)
            picture = self._picture(event) if event.alert.kind != Alert.KIND_UPDATED else None
            if picture is not None:
                self._publish(client, f"{base}/picture", picture, retain=True)
            self._publish(client, f"{base}/state", state.encode(), retain=True)
        self._publish(client, f"{base}/attributes", to_json(event), retain=True)
        self._publish_data(client, message)

    def _publish_data(self, client: paho.Client, message: Message) -> None:
        """Publish an event and its id for programs. The event is not retained, so a program gets each event
        once.
        """
        data = {"id": message.id, "data": json.loads(to_json(message.event))}
        self._publish(client, f"{self._topic}/events", json.dumps(data, ensure_ascii=False).encode())


def client_name(notification: str) -> str:
    """Return the MQTT client name under which a notification connects."""
    return f"lookout-{stable_id(notification)[:12]}"


def availability_topic(topic: str, notification: str) -> str:
    """Return the topic that says whether a notification is connected."""
    return f"{topic}/{client_name(notification)}/availability"


def _heir(attributes: bytes, heirs: Sequence[Notification]) -> str | None:
    """Return the id of one of `heirs` that was told of an entity's newest incident; None if no heir was."""
    try:
        event = from_json(attributes, NotificationEvent)
    except WireError:
        return None
    end_ms = event.alert.end.ToMilliseconds()
    return next(
        (heir.id for heir in heirs if wants_incident(heir, event.alert, event.severity, end_ms)), None
    )


def state_of(alert: Alert) -> str:
    """Return a sensor's state after an alert: on, off, or unknown if the incident closed without a known
    end.
    """
    if alert.kind != Alert.KIND_CLOSED:
        return ON
    return OFF if alert.reason in _SEEN_ENDS else _UNKNOWN


def camera_availability(alert: Alert) -> str | None:
    """Return a camera's availability (online or offline) according to an alert; None if the alert says
    nothing about it. While a camera is offline, its states are unknown.
    """
    if alert.watch == CAMERA_OFFLINE:
        return _ONLINE if alert.kind == Alert.KIND_CLOSED else _OFFLINE
    if alert.watch == CAMERA_HEALTH and alert.cause == _OFFLINE and alert.kind != Alert.KIND_CLOSED:
        return _OFFLINE
    if alert.kind == Alert.KIND_CLOSED and alert.reason not in _SEEN_ENDS:
        return None
    return _ONLINE


def _is_of_camera(place: str) -> bool:
    """Return whether a topic, given without its prefix, is a camera's availability and not a
    notification's.
    """
    return re.fullmatch(r"[0-9a-f]{16}/availability", place) is not None


def camera_topic(topic: str, camera: str) -> str:
    """Return the topic of a camera's availability."""
    return f"{topic}/{stable_id('mqtt', camera)[:16]}/availability"


def entity_key(camera: str, watch: str) -> str:
    """Return the topic level for a camera and watch. It is a digest, because ids may contain characters that
    MQTT reserves.
    """
    return stable_id("mqtt", camera, watch)[:16]


def discovery(
    topic: str, availability: str, camera: str, watch: str, question: str
) -> dict[str, dict[str, Any]]:
    """Return the Home Assistant discovery messages for a camera and watch, by component.

    A fault of the camera itself is announced with the device class `problem`. While a camera is offline, its
    entities are unavailable.

    Args:
        topic: Prefix of the state topics.
        availability: Topic that says whether the service is connected; while the service is not, states
            are unknown.
        camera: The camera's id.
        watch: The watch's id.
        question: The watch's question.
    """
    key = entity_key(camera, watch)
    base = f"{topic}/{key}"
    shared: dict[str, Any] = {
        "availability": [
            {"topic": place, "payload_available": _ONLINE, "payload_not_available": _OFFLINE}
            for place in (availability, *([] if watch in _PROBLEMS else [camera_topic(topic, camera)]))
        ],
        "availability_mode": "all",
        "device": {
            "identifiers": [f"lookout-{stable_id('mqtt', camera)[:16]}"],
            "name": clean(camera, 100),
            "manufacturer": "Lookout",
        },
        "origin": {"name": "Lookout"},
    }
    sensor = {
        **shared,
        "unique_id": f"lookout_{key}",
        "name": clean(question or watch, 100),
        "state_topic": f"{base}/state",
        "json_attributes_topic": f"{base}/attributes",
        "payload_on": ON,
        "payload_off": OFF,
    }
    if watch in _PROBLEMS:
        problem = {"name": _PROBLEMS[watch], "device_class": "problem", "entity_category": "diagnostic"}
        return {"binary_sensor": {**sensor, **problem}}
    return {
        "binary_sensor": sensor,
        "image": {
            **shared,
            "unique_id": f"lookout_{key}_picture",
            "name": f"{clean(watch, 100)} picture",
            "image_topic": f"{base}/picture",
            "content_type": "image/jpeg",
        },
    }
