"""Home Assistant's switches snooze watches, over a real mosquitto, notify, gateway and Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from lookout.local import KafkaServer
from lookout.services.notify.channels.mqtt_channel import MqttChannel
from lookout.services.notify.channels.snooze_switches import WatchSwitches
from lookout.services.notify.messages import DeliveryError
from lookout.v1.notifications_pb2 import Mqtt
from tests.eventually import eventually
from tests.fleet.gateway_case import gateway
from tests.fleet.test_notify_mqtt import Listener, channel, mosquitto

pytestmark = [pytest.mark.fleet, pytest.mark.long]


class Home(Listener):
    """What Home Assistant does with switches: it discovers them, shows their states and sends commands."""

    def switches(self, prefix: str = "Snooze: ") -> dict[str, dict[str, Any]]:
        """The switches that are announced now, by their name."""
        configs = [
            json.loads(payload)
            for topic, payload in list(self.got.items())
            if topic.startswith("homeassistant/switch/") and payload
        ]
        return {config["name"].removeprefix(prefix): config for config in configs}

    def shows(self, config: dict[str, Any], state: str) -> None:
        """Wait until a switch has a state."""
        self.wait(config["state_topic"], state.encode())

    def turn(self, config: dict[str, Any], command: str, *, retain: bool = False) -> None:
        """Send a command."""
        self._client.publish(config["command_topic"], command, 1, retain=retain).wait_for_publish(10)


@dataclass(frozen=True)
class World:
    """A gateway with three watches; of two clients of a broker one may snooze two of them, one may look."""

    client: httpx.Client
    home: Home
    operator: MqttChannel
    viewer: MqttChannel
    port: int

    def obey(self, link: MqttChannel, config: dict[str, Any], command: str) -> None:
        """Send a command, and have a client obey it."""
        self.home.turn(config, command)
        eventually(link.has_work, 30)
        link.keep()


@pytest.fixture(scope="module")
def world(broker: KafkaServer, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("snooze")
    with ExitStack() as stack:
        port = stack.enter_context(mosquitto(folder, ["allow_anonymous true"]))
        api = gateway(stack, folder, broker.bootstrap, redis_url)
        client = stack.enter_context(api.signed_in())
        for name in ("gate-open", "gate-blocked", "yard"):
            body = {"question": f"Is it {name}?"}
            assert client.put(f"/v1/watches/{name}", json=body).status_code == 200
        links = {}
        for role, patterns in (("operator", ["gate-*"]), ("viewer", ["yard"])):
            secret = client.post("/v1/tokens", json={"name": f"home-{role}", "role": role}).json()["secret"]
            target = Mqtt(host="127.0.0.1", port=port)
            link = channel(target, folder, name=role, watches=WatchSwitches(api.url, secret, patterns))
            stack.callback(link.close)
            eventually(lambda link=link: connects(link), 30)
            links[role] = link
        home = Home(port)
        stack.callback(home.close)
        eventually(lambda: len(home.switches()) == 3, 30)
        yield World(client, home, links["operator"], links["viewer"], port)


def connects(link: MqttChannel) -> bool:
    """Whether a client reaches the broker, which begins to listen."""
    try:
        link.keep()
    except DeliveryError:
        return False
    return True


def audited(client: httpx.Client) -> list[tuple[str, str]]:
    """What was done to watches, and by whom, newest first."""
    entries = client.get("/v1/audit", params={"limit": 50}).json()["entries"]
    return [(entry["actor"], entry["action"]) for entry in entries if entry["action"].startswith("watch.")]


def test_a_switch_snoozes_and_wakes_its_watch(world: World) -> None:
    client, home = world.client, world.home
    config = home.switches()["Is it gate-open?"]
    home.shows(config, "OFF")
    world.obey(world.operator, config, "ON")
    home.shows(config, "ON")
    view = client.get("/v1/watches/gate-open").json()
    assert view["enabled"] is False
    until = datetime.fromisoformat(view["snoozed_until"])
    assert timedelta(hours=23) < until - datetime.now(UTC) <= timedelta(hours=24)
    actor, _ = eventually(lambda: next((own for own in audited(client) if own[1] == "watch.snooze"), None))
    assert "home-operator" in actor
    world.obey(world.operator, config, "OFF")
    home.shows(config, "OFF")
    assert client.get("/v1/watches/gate-open").json()["enabled"] is True
    eventually(lambda: audited(client)[0] == (actor, "watch.enable"))


def test_the_state_follows_what_people_do_in_the_console(world: World) -> None:
    client, home = world.client, world.home
    config = home.switches()["Is it gate-blocked?"]
    until = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    assert client.post("/v1/watches/gate-blocked/snooze", json={"until": until}).status_code == 200
    world.operator.keep()
    home.shows(config, "ON")
    client.post("/v1/watches/gate-blocked/disable")  # disabled for good, not snoozed
    world.operator.keep()
    home.shows(config, "OFF")
    eventually(lambda: audited(client)[0][1] == "watch.disable")
    before = audited(client)
    for command in ("ON", "OFF", "?"):
        world.obey(world.operator, config, command)
    assert audited(client) == before
    client.delete("/v1/watches/gate-blocked")
    world.operator.keep()
    eventually(lambda: "Is it gate-blocked?" not in home.switches(), 30)
    eventually(lambda: audited(client)[0][1] == "watch.remove")


def test_a_token_without_the_right_and_an_old_command_change_nothing(world: World) -> None:
    client, home = world.client, world.home
    config = home.switches()["Is it yard?"]
    before = audited(client)
    world.obey(world.viewer, config, "ON")
    home.shows(config, "OFF")
    home.turn(config, "ON", retain=True)
    world.viewer.close()
    world.viewer.keep()  # a new connection gets the retained command, after the states of before
    world.viewer.keep()
    assert client.get("/v1/watches/yard").json()["enabled"] is True
    assert audited(client) == before


def test_without_a_token_the_switches_of_before_go(world: World, tmp_path: Path) -> None:
    home, port = world.home, world.port
    link = channel(Mqtt(host="127.0.0.1", port=port), tmp_path, name="viewer")
    world.viewer.close()

    def gone() -> bool:
        link.keep()
        return "Is it yard?" not in home.switches()

    eventually(gone, 30, 0.2)
    link.close()
