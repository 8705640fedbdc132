"""Home Assistant's own code: its schemas take what notify publishes, and a running one shows and obeys it.

It runs in an environment of its own.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lookout.services.notify.channels.mqtt_channel import discovery
from lookout.services.notify.channels.snooze_switches import Switch, switch
from lookout.services.notify.messages import Message
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Mqtt, NotificationEvent
from lookout.wire import CAMERA_HEALTH
from tests.eventually import eventually
from tests.fleet.notify_case import QUESTION, alert
from tests.fleet.test_notify_mqtt import PICTURE, channel, connected, mosquitto
from tests.fleet.test_notify_snooze import World, world as world  # noqa: PLC0414 - a fixture

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.version_info[:2] > (3, 12), reason="that release needs Python 3.11 or 3.12"),
]

#: the newest release for the oldest Python of the project, with what its MQTT integration needs
PACKAGES = ("homeassistant==2024.3.3", "paho-mqtt<2", "janus==1.0.0", "numpy<2")
VALIDATING = """
import importlib, json, sys
for component, config in json.load(sys.stdin):
    module = importlib.import_module(f"homeassistant.components.mqtt.{component}")
    module.DISCOVERY_SCHEMA(config)
try:
    module.DISCOVERY_SCHEMA({**config, "availability_mode": "never"})
except Exception as error:
    assert "availability_mode" in str(error), error
else:
    raise AssertionError("the schema takes everything")
"""
#: Home Assistant with its MQTT integration alone; each line of input calls a service or nothing, and is
#: answered with all states
RUNNING = """
import asyncio, base64, json, sys
from homeassistant import auth, bootstrap, config_entries, core, loader
from homeassistant.components import image

async def main(folder, port):
    home = core.HomeAssistant(folder)
    loader.async_setup(home)
    home.config.skip_pip = True
    home.config_entries = config_entries.ConfigEntries(home, {})
    await bootstrap.async_load_base_functionality(home)
    home.auth = await auth.auth_manager_from_config(home, [], [])
    home.set_state(core.CoreState.running)
    broker = {"broker": "127.0.0.1", "port": port}
    entry = config_entries.ConfigEntry(
        version=1, minor_version=1, domain="mqtt", title="", data=broker, source="user"
    )
    await home.config_entries.async_add(entry)
    assert entry.state is config_entries.ConfigEntryState.LOADED, (entry.state, entry.reason)
    asked = asyncio.StreamReader()
    await home.loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    while line := await asked.readline():
        if call := json.loads(line):
            await home.services.async_call(*call, blocking=True)
        shown = {}
        for state in home.states.async_all():
            shown[state.entity_id] = {"state": state.state, **state.attributes}
            if state.domain == "image":
                entity = home.data["image"].get_entity(state.entity_id)
                data = await entity.async_image()
                shown[state.entity_id]["picture"] = base64.b64encode(data or b"").decode()
        print(json.dumps(shown, default=str), flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has Home Assistant."""
    uv = str(Path(sys.executable).with_name("uv"))
    home = tmp_path_factory.mktemp("home-assistant")
    subprocess.run([uv, "venv", "-q", "-p", sys.executable, str(home)], check=True)
    subprocess.run([uv, "pip", "install", "-q", "-p", str(home / "bin" / "python"), *PACKAGES], check=True)
    return home / "bin" / "python"


class Home:
    """A running Home Assistant."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, *call: Any) -> dict[str, dict[str, Any]]:
        """Call a service, if one is given; return all states by the name that people read."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        shown: dict[str, dict[str, Any]] = json.loads(self._process.stdout.readline())
        return {entity["friendly_name"]: {**entity, "id": name} for name, entity in shown.items()}

    def shows(self, name: str, state: str | None) -> None:
        """Wait until an entity is in a state; None: until the entity no longer exists."""
        eventually(lambda: self.ask().get(name, {}).get("state") == state, 60, 0.1)


@contextmanager
def running(python: Path, folder: Path, port: int) -> Iterator[Home]:
    """A Home Assistant at a broker, within the block."""
    folder.mkdir()
    (folder / "configuration.yaml").touch()
    command = [str(python), "-c", RUNNING, str(folder), str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Home(process)
    finally:
        process.kill()
        process.communicate()


def told(number: int, kind: Alert.Kind, reason: str = "", *, watch: str = "fall", cause: str = "") -> Message:
    """An event of the camera "gate"."""
    event = NotificationEvent(notification="home", alert=alert(1, kind, number))
    event.alert.watch, event.alert.reason, event.alert.cause = watch, reason, cause
    return Message(f"id-{number}", event, 0)


def test_it_shows_what_cameras_say(python: Path, tmp_path: Path) -> None:
    sensor, picture, problem = f"gate {QUESTION}", "gate fall picture", "gate Camera"
    with mosquitto(tmp_path, ["allow_anonymous true"]) as port:
        link = channel(Mqtt(host="127.0.0.1", port=port), tmp_path)
        connected(link, told(0, Alert.KIND_OPENED))
        with running(python, tmp_path / "config", port) as home:
            home.shows(sensor, "on")  # also where it starts after the incident
            eventually(lambda: base64.b64decode(home.ask()[picture].get("picture", "")) == PICTURE, 60, 0.1)
            link.send(told(1, Alert.KIND_CLOSED, "cleared"))
            home.shows(sensor, "off")
            link.send(told(2, Alert.KIND_OPENED))
            home.shows(sensor, "on")
            link.send(told(3, Alert.KIND_CLOSED, "gap"))
            home.shows(sensor, "unknown")
            link.send(told(4, Alert.KIND_OPENED, watch=CAMERA_HEALTH, cause="offline"))
            home.shows(problem, "on")
            home.shows(sensor, "unavailable")
            assert home.ask()[problem]["device_class"] == "problem"
            link.send(told(5, Alert.KIND_CLOSED, "cleared", watch=CAMERA_HEALTH, cause="offline"))
            home.shows(problem, "off")
            home.shows(sensor, "unknown")
            link.close()
            for entity in (sensor, picture, problem):
                home.shows(entity, "unavailable")
            link.retire()
            for entity in (sensor, picture, problem):
                home.shows(entity, None)


def test_its_switch_snoozes_a_watch(python: Path, tmp_path: Path, world: World) -> None:
    name = "Lookout watches Snooze: Is it gate-open?"
    with running(python, tmp_path / "config", world.port) as home:
        for command, state, is_asked in (("turn_on", "on", False), ("turn_off", "off", True)):
            world.operator.keep()
            # It calls no service of an entity that is not available yet.
            eventually(lambda: home.ask().get(name, {}).get("state") not in {None, "unavailable"}, 60, 0.1)
            home.ask("switch", command, {"entity_id": home.ask()[name]["id"]})
            eventually(world.operator.has_work, 60)
            world.operator.keep()
            home.shows(name, state)
            assert world.client.get("/v1/watches/gate-open").json()["enabled"] is is_asked


def test_its_schemas_take_every_entity(python: Path) -> None:
    configs = [
        entity
        for watch, question in (
            ("fall", "Is anyone lying on the ground?"),
            (CAMERA_HEALTH, "The lens is covered."),
        )
        for entity in discovery("lookout", "lookout/service/availability", "gate", watch, question).items()
    ]
    view = Switch("fall", "Is anyone lying on the ground?", is_enabled=True, is_snoozed=False)
    configs.insert(
        0, ("switch", switch("lookout/service/snooze", "key", "lookout/service/availability", view))
    )
    assert [name for name, _ in configs] == ["switch", "binary_sensor", "image", "binary_sensor"]
    subprocess.run([str(python), "-c", VALIDATING], input=json.dumps(configs), text=True, check=True)
