"""MQTT over a real mosquitto: retained states for Home Assistant, TLS, and why a login is rejected."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from lookout.local import free_ports
from lookout.rules.notifications import asked_for
from lookout.runtime.net.fetch import UriFetcher
from lookout.services.notify.channels.mqtt_channel import (
    MqttChannel,
    availability_topic,
    camera_topic,
    discovery,
    entity_key,
)
from lookout.services.notify.channels.snooze_switches import WatchSwitches
from lookout.services.notify.messages import DeliveryError, Message
from lookout.services.notify.secrets import Secrets
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Mqtt, Notification, NotificationEvent
from lookout.wire import CAMERA_HEALTH, CAMERA_OFFLINE
from tests.certificates import Authority
from tests.eventually import eventually
from tests.fleet.notify_case import alert

pytestmark = pytest.mark.fleet

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
PASSWORD = "of the tests"
PICTURE = b"\xff\xd8 a picture"
BASE = f"lookout/{entity_key('gate', 'fall')}"


@contextmanager
def mosquitto(folder: Path, lines: list[str]) -> Iterator[int]:
    """A broker on 127.0.0.1; gives its port."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    (port,) = free_ports(1)
    config = folder / "mosquitto.conf"
    config.write_text("\n".join(["user root", f"listener {port} 127.0.0.1", *lines, ""]))
    process = subprocess.Popen([MOSQUITTO, "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A broker that lets everybody in."""
    with mosquitto(tmp_path_factory.mktemp("broker"), ["allow_anonymous true"]) as port:
        yield port


class Listener:
    """What a client that comes later gets: retained messages, then new ones."""

    def __init__(self, port: int) -> None:
        self.got: dict[str, bytes] = {}
        self.retained: set[str] = set()
        self.events: list[Any] = []
        self._listening: dict[str, Callable[[bytes], object]] = {}
        self._client = paho.Client(CallbackAPIVersion.VERSION2)
        self._client.on_connect = lambda client, *_: client.subscribe("#", 1)
        self._client.on_message = self._take
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def _take(self, _client: Any, _data: Any, message: Any) -> None:
        self.got[message.topic] = message.payload
        if message.topic in self._listening:
            self._listening[message.topic](message.payload)
        if message.retain:
            self.retained.add(message.topic)
        if message.topic == "lookout/events":
            self.events.append(json.loads(message.payload))

    def listen(self, topic: str, heard: Callable[[bytes], object]) -> None:
        """Have every message of a topic from now on."""
        self._listening[topic] = heard

    def wait(self, topic: str, payload: bytes) -> None:
        eventually(lambda: self.got.get(topic) == payload, 30)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def channel(
    target: Mqtt,
    folder: Path,
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost"),
    *,
    name: str = "home",
    watches: WatchSwitches | None = None,
    wanted: Callable[[NotificationEvent], bool] = lambda _: True,
    trial: bool = False,
) -> MqttChannel:
    allowed = UriFetcher((), hosts, ("127.0.0.0/8", "::1/128"), timeout_s=10.0, settings="LOOKOUT_NOTIFY")
    return MqttChannel(
        target,
        Secrets(folder),
        allowed,
        lambda _: PICTURE,
        name,
        watches=watches,
        wanted=wanted,
        trial=trial,
    )


def message(kind: Alert.Kind, number: int = 0, reason: str = "") -> Message:
    event = NotificationEvent(notification="home", alert=alert(1, kind, number))
    event.alert.reason = reason
    return Message(f"id-{number}", event, 0)


def connected(link: MqttChannel, first: Message) -> None:
    """Send a message once the broker listens."""
    deadline = time.monotonic() + 30
    while True:
        try:
            link.send(first)
            return
        except DeliveryError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_states_are_there_for_who_comes_later(broker: int, tmp_path: Path) -> None:
    link = channel(Mqtt(host="127.0.0.1", port=broker), tmp_path)
    connected(link, message(Alert.KIND_OPENED))
    late = Listener(broker)
    late.wait(f"{BASE}/state", b"ON")
    late.wait(f"{BASE}/picture", PICTURE)
    assert json.loads(late.got[f"{BASE}/attributes"])["alert"]["incident"] == "incident-1"
    assert {f"{BASE}/state", f"{BASE}/picture"} <= late.retained
    link.send(message(Alert.KIND_CLOSED, 1, "cleared"))
    late.wait(f"{BASE}/state", b"OFF")
    eventually(lambda: [event["id"] for event in late.events] == ["id-1"], 30)
    link.close()
    late.close()


def test_a_camera_that_nobody_saw_is_unknown_and_not_off(broker: int, tmp_path: Path) -> None:
    link = channel(Mqtt(host="127.0.0.1", port=broker), tmp_path)
    connected(link, message(Alert.KIND_OPENED))
    listener = Listener(broker)
    link.send(message(Alert.KIND_CLOSED, 1, "gap"))
    listener.wait(f"{BASE}/state", b"None")
    link.close()
    listener.close()


def test_discovery_names_the_topics_that_are_written(broker: int, tmp_path: Path) -> None:
    link = channel(Mqtt(host="127.0.0.1", port=broker), tmp_path)
    connected(link, message(Alert.KIND_OPENED))
    listener = Listener(broker)
    key = entity_key("gate", "fall")
    paths = {
        kind: f"homeassistant/{kind}/lookout_{key}{end}/config"
        for kind, end in (("binary_sensor", ""), ("image", "_picture"))
    }
    eventually(lambda: set(paths.values()) <= set(listener.got), 30)
    sensor, image = (json.loads(listener.got[path]) for path in paths.values())
    for topic in (sensor["state_topic"], sensor["json_attributes_topic"], image["image_topic"]):
        eventually(lambda topic=topic: topic in listener.got, 30)  # type: ignore[misc]
    for entity in (sensor, image):
        assert entity["availability_mode"] == "all"
        for entry in entity["availability"]:
            listener.wait(entry["topic"], b"online")
    assert sensor["device"] == image["device"]
    assert sensor["unique_id"] != image["unique_id"]
    link.close()
    listener.close()


def faulty(watch: str, kind: Alert.Kind, cause: str = "") -> Message:
    event = NotificationEvent(notification="home", alert=alert(9, kind, camera="pier"))
    event.alert.watch, event.alert.cause = watch, cause
    return Message(f"{watch}-{cause}-{kind}", event, 0)


@pytest.mark.parametrize(("watch", "cause"), [(CAMERA_OFFLINE, ""), (CAMERA_HEALTH, "offline")])
def test_a_camera_that_is_offline_is_a_problem_and_its_states_are_unavailable(
    broker: int, tmp_path: Path, watch: str, cause: str
) -> None:
    link = channel(Mqtt(host="127.0.0.1", port=broker), tmp_path)
    opened = NotificationEvent(notification="home", alert=alert(8, Alert.KIND_OPENED, camera="pier"))
    connected(link, Message("opened", opened, 0))
    listener = Listener(broker)
    place = camera_topic("lookout", "pier")
    listener.wait(place, b"online")
    link.send(faulty(watch, Alert.KIND_OPENED, cause))
    listener.wait(place, b"offline")
    problem = f"lookout/{entity_key('pier', watch)}/state"
    listener.wait(problem, b"ON")
    # What ends because nobody saw it says nothing of the camera.
    gap = NotificationEvent(notification="home", alert=alert(8, Alert.KIND_CLOSED, 1, "pier"))
    gap.alert.reason = "gap"
    link.send(Message("gap", gap, 0))
    listener.wait(f"lookout/{entity_key('pier', 'fall')}/state", b"None")
    assert listener.got[place] == b"offline"
    end = faulty(watch, Alert.KIND_CLOSED, cause)
    end.event.alert.reason = "cleared"
    link.send(end)
    listener.wait(place, b"online")
    listener.wait(problem, b"OFF")
    sensors = discovery("lookout", "service", "pier", watch, "")
    assert sensors["binary_sensor"]["device_class"] == "problem"
    assert [entry["topic"] for entry in sensors["binary_sensor"]["availability"]] == ["service"]
    link.close()
    listener.close()


def test_an_outage_that_was_not_asked_for_makes_states_unavailable_and_nothing_else(tmp_path: Path) -> None:
    """A notification of some watches alone; what it published goes with it."""
    with mosquitto(tmp_path, ["allow_anonymous true"]) as port:
        only = Notification(id="home", watches=["fall"])
        target = Mqtt(host="127.0.0.1", port=port)
        link = channel(target, tmp_path, wanted=partial(asked_for, only))
        connected(link, faulty(CAMERA_HEALTH, Alert.KIND_OPENED, "offline"))
        listener = Listener(port)
        place = camera_topic("lookout", "pier")
        listener.wait(place, b"offline")
        link.send(Message("end", NotificationEvent(test=True, text="."), 0))
        listener.wait("lookout/test", b'{"text": "."}')
        left = {topic for topic, payload in listener.got.items() if payload}
        assert left == {place, availability_topic("lookout", "home"), "lookout/test"}
        link.retire()
        listener.wait(place, b"")
        listener.close()


def test_states_of_a_service_that_ended_are_unavailable(broker: int, tmp_path: Path) -> None:
    link = channel(Mqtt(host="127.0.0.1", port=broker), tmp_path)
    connected(link, message(Alert.KIND_OPENED))
    listener = Listener(broker)
    services = re.compile("lookout/lookout-[0-9a-f]+/availability")
    eventually(lambda: any(map(services.fullmatch, listener.got)), 30)
    (topic,) = filter(services.fullmatch, listener.got)
    link.close()
    listener.wait(topic, b"offline")
    listener.close()


def test_a_test_message_leaves_the_connection_as_it_is(broker: int, tmp_path: Path) -> None:
    """Two clients of one name would end each other, and every entity would be unavailable meanwhile."""
    target = Mqtt(host="127.0.0.1", port=broker)
    link = channel(target, tmp_path, name="tried")
    connected(link, message(Alert.KIND_OPENED))
    listener = Listener(broker)
    place = availability_topic("lookout", "tried")
    listener.wait(place, b"online")
    said: list[bytes] = []
    listener.listen(place, said.append)
    trial = channel(target, tmp_path, name="tried", trial=True)
    trial.send(Message("test", NotificationEvent(test=True, text="Test."), 0))
    trial.close()
    listener.wait("lookout/test", b'{"text": "Test."}')
    client = link._client
    link.send(message(Alert.KIND_UPDATED, 1))
    eventually(lambda: "id-1" in [event["id"] for event in listener.events], 30)
    assert link._client is client
    assert said == []
    link.close()
    listener.close()


def test_tls_with_a_password(tmp_path: Path) -> None:
    files = Authority().write(tmp_path / "tls")
    passwords = tmp_path / "passwords"
    passwords.touch(0o600)
    subprocess.run(["mosquitto_passwd", "-b", str(passwords), "home", PASSWORD], check=True)
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "wrong").write_text("another")
    (tmp_path / "ca").write_bytes(files["grpc_ca_file"].read_bytes())
    lines = [
        f"certfile {files['grpc_cert_file']}",
        f"keyfile {files['grpc_key_file']}",
        f"password_file {passwords}",
    ]
    with mosquitto(tmp_path, [*lines, "allow_anonymous false"]) as port:
        target = Mqtt(
            host="127.0.0.1", port=port, tls=True, username="home", password_file="password", ca_file="ca"
        )
        link = channel(target, tmp_path)
        connected(link, message(Alert.KIND_OPENED))
        link.close()
        target.password_file = "wrong"
        with pytest.raises(DeliveryError, match=r"(?i)not authori"):
            channel(target, tmp_path).send(message(Alert.KIND_OPENED))
        target.ca_file = ""
        with pytest.raises(DeliveryError, match="certificate"):
            channel(target, tmp_path).send(message(Alert.KIND_OPENED))


def test_a_host_that_is_not_allowed_is_not_reached(broker: int, tmp_path: Path) -> None:
    with pytest.raises(DeliveryError, match="LOOKOUT_NOTIFY_HOSTS"):
        channel(Mqtt(host="127.0.0.1", port=broker), tmp_path, ("elsewhere",)).send(
            message(Alert.KIND_OPENED)
        )


def test_a_removed_notification_leaves_nothing_in_the_broker(tmp_path: Path) -> None:
    with mosquitto(tmp_path, ["allow_anonymous true"]) as port:
        target = Mqtt(host="127.0.0.1", port=port)
        first, other = channel(target, tmp_path), channel(target, tmp_path, name="other")
        connected(first, message(Alert.KIND_OPENED))
        second = message(Alert.KIND_OPENED, 1)
        second.event.alert.camera = "yard"
        other.send(second)
        foreign = paho.Client(CallbackAPIVersion.VERSION2)
        foreign.connect("127.0.0.1", port)
        foreign.loop_start()
        for name, payload in (("lamp", b'{"availability": [{"topic": "lamp/up"}]}'), ("noise", b"\xff{")):
            foreign.publish(f"homeassistant/switch/{name}/config", payload, 1, retain=True).wait_for_publish(
                30
            )
        first.retire()
        late = Listener(port)
        key = entity_key("yard", "fall")
        late.wait(f"lookout/{key}/state", b"ON")
        foreign.publish("end", b"end", 1)  # what is retained comes before
        late.wait("end", b"end")
        left = {topic for topic in late.retained if late.got[topic]}
        assert not [topic for topic in left if entity_key("gate", "fall") in topic]
        assert {f"homeassistant/{kind}" for kind in ("switch/lamp/config", "switch/noise/config")} <= left
        assert f"homeassistant/binary_sensor/lookout_{key}/config" in left
        assert (
            sum(topic.startswith("lookout/lookout-") for topic in left) == 1
        )  # the other one's availability
        for client in (foreign,):
            client.disconnect()
            client.loop_stop()
        other.close()
        late.close()


def test_a_broker_that_hides_discovery_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("topic write homeassistant/#\ntopic readwrite lookout/#\n")
    with mosquitto(tmp_path, ["allow_anonymous true", f"acl_file {tmp_path / 'acl'}"]) as port:
        leaving = channel(Mqtt(host="127.0.0.1", port=port), tmp_path)
        connected(leaving, message(Alert.KIND_OPENED))
        with pytest.raises(DeliveryError, match="does not let this user read homeassistant/#"):
            leaving.retire()
        leaving.close()


def test_entities_that_another_notification_tells_of_are_left_to_it(tmp_path: Path) -> None:
    """The sensor stays available; that of a camera that the other one is not told of goes."""
    with mosquitto(tmp_path, ["allow_anonymous true"]) as port:
        target = Mqtt(host="127.0.0.1", port=port)
        leaving, staying = channel(target, tmp_path), channel(target, tmp_path, name="other")
        connected(staying, message(Alert.KIND_OPENED))
        leaving.send(message(Alert.KIND_UPDATED, 1))  # announces last
        alone = message(Alert.KIND_OPENED, 2)
        alone.event.alert.camera = "yard"
        leaving.send(alone)
        others = [Notification(id="other", mqtt=target, cameras=["gate"]), Notification(id="slack")]
        leaving.retire(others)
        late = Listener(port)
        late.wait(f"{BASE}/state", b"ON")
        sensor = f"homeassistant/binary_sensor/lookout_{entity_key('gate', 'fall')}/config"
        eventually(lambda: sensor in late.got, 30)
        for place in json.loads(late.got[sensor])["availability"]:
            late.wait(place["topic"], b"online")
        assert not [topic for topic in late.got if entity_key("yard", "fall") in topic]
        assert camera_topic("lookout", "yard") not in late.got
        staying.close()
        late.close()
