"""Which records of cameras.v1 the agent follows."""

from __future__ import annotations

import pytest

from lookout.services.camera_agent.agent import camera_fault
from lookout.v1.cameras_pb2 import Camera
from lookout.wire import to_json


def test_a_camera_under_its_own_key_is_followed() -> None:
    assert camera_fault("gate", to_json(Camera(id="gate", url="rtsp://127.0.0.1/x"))) is None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"{", "not a lookout.v1.Camera in JSON"),
        (to_json(Camera(id="yard")), "its key must be the camera's id, 'yard'"),
        (to_json(Camera(url="rtsp://127.0.0.1/x")), "its key must be the camera's id"),
        (to_json(Camera(id="gate", tenant="a b")), "tenant 'a b'"),
        (b'{"id": "gate", "fps": ' + b"9" * 5000 + b"}", "Camera"),
    ],
)
def test_a_record_that_is_no_camera_is_left_out_with_its_reason(value: bytes, why: str) -> None:
    assert why in (camera_fault("gate", value) or "")
