"""A camera's password goes to the hosts that its secret names, and not in the clear."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from lookout.services.camera_agent.access import AccessError, allowed_hosts, check_scheme, is_for, placed


def answering(reply: bytes) -> str:
    """The URL of a server that gives one answer to whoever connects."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()
    return f"rtsp://127.0.0.1:{server.getsockname()[1]}/live"


def test_a_secret_says_which_hosts_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "yard").mkdir()
    with pytest.raises(AccessError, match="does not say which hosts"):
        allowed_hosts(tmp_path, "yard")
    (tmp_path / "yard" / "hosts").write_text("10.20.0.0/16\n*.cameras.example\n")
    hosts = allowed_hosts(tmp_path, "yard")
    assert [is_for(host, hosts) for host in ("10.20.1.1", "A.cameras.example.", "fd00::1", "10.21.0.1")] == [
        True,
        True,
        False,
        False,
    ]
    assert not is_for("evil.example", hosts)


def test_addresses_outside_the_networks_of_cameras_are_refused() -> None:
    assert placed("rtsp://localhost:8554/a?b=c", ["127.0.0.0/8", "::1/128"]).endswith(":8554/a?b=c")
    assert "localhost" not in placed("rtsp://localhost:8554/a", ["127.0.0.0/8", "::1/128"])
    assert placed("rtsp://anything/x", []) == "rtsp://anything/x"
    with pytest.raises(AccessError, match="outside LOOKOUT_CAMERA_NETWORKS"):
        placed("rtsp://169.254.169.254/latest", ["10.20.0.0/16"])


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b'RTSP/1.0 401 Unauthorized\r\nWWW-Authenticate: Basic realm="x"\r\n\r\n', "in the clear"),
        (b"RTSP/1.0 302 Moved\r\nLocation: rtsp://evil/\r\n\r\n", "redirects"),
    ],
)
def test_what_would_take_the_password_along_is_refused(reply: bytes, words: str) -> None:
    with pytest.raises(AccessError, match=words):
        check_scheme(answering(reply), 10.0, basic=False)


@pytest.mark.parametrize(
    "reply",
    [
        b"RTSP/1.0 401 Unauthorized\r\nWWW-Authenticate: Basic r\r\nWWW-Authenticate: Digest r\r\n\r\n",
        b"RTSP/1.0 200 OK\r\nContent-Length: 1000000000\r\n\r\n",
        b"x" * 100_000,
        b"",
    ],
)
def test_digest_and_nonsense_pass_within_bounds(reply: bytes) -> None:
    check_scheme(answering(reply), 10.0, basic=False)


def test_basic_may_be_allowed() -> None:
    reply = b'RTSP/1.0 401 Unauthorized\r\nWWW-Authenticate: Basic realm="x"\r\n\r\n'
    check_scheme(answering(reply), 10.0, basic=True)
