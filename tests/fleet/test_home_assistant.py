"""Home Assistant's own schemas of discovery take what notify publishes, in an environment of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lookout.services.notify.channels.mqtt_channel import discovery
from lookout.services.notify.channels.snooze_switches import Switch, switch
from lookout.wire import CAMERA_HEALTH

pytestmark = pytest.mark.fleet

#: the newest release for the oldest Python of the project, with what its MQTT integration needs
PACKAGES = ("homeassistant==2024.3.3", "paho-mqtt<2")
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


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.version_info[:2] > (3, 12), reason="that release needs Python 3.11 or 3.12")
def test_its_schemas_take_every_entity(tmp_path: Path) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    python = tmp_path / "home" / "bin" / "python"
    subprocess.run([uv, "venv", "-q", "-p", sys.executable, str(tmp_path / "home")], check=True)
    subprocess.run([uv, "pip", "install", "-q", "-p", str(python), *PACKAGES], check=True)
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
