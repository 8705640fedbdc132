"""What an agent says of a camera that it cannot pull."""

from __future__ import annotations

import socket

import pytest

from lookout.services.camera_agent.stream import unreachable


def test_an_address_at_which_something_listens_is_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert unreachable(f"rtsp://127.0.0.1:{server.getsockname()[1]}/stream", 5.0) == ""


def test_a_closed_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = unreachable(f"rtsp://viewer:secret@127.0.0.1:{port}/stream", 5.0)
    assert said == f"cannot reach 127.0.0.1:{port}: Connection refused"


@pytest.mark.parametrize(
    "url", ["rtsp://camera.invalid/stream", "rtsp://camera:99999/stream", "rtsp://[::/x"]
)
def test_a_name_nobody_knows_and_an_address_that_is_none_are_said(url: str) -> None:
    assert unreachable(url, 5.0).startswith("cannot reach ")
