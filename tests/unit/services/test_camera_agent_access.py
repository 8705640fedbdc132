"""A camera's password goes to the hosts that its secret names, and not in the clear."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lookout.services.camera_agent.access import AccessError, allowed_hosts, check_scheme, is_for, placed
from tests.acceptor import Acceptor


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """The URL of a server that gives one answer to whoever connects."""

    def serve(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(reply)

    server = Acceptor(serve)
    yield f"rtsp://{server.address}/live"
    server.close()


def check(reply: bytes, *, basic: bool = False) -> None:
    """`check_scheme` of a camera that answers so."""
    with answering(reply) as url:
        connection, numeric = placed(url, []).connect(10.0)
        with connection:
            check_scheme(connection, numeric, 10.0, basic=basic)


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
    place = placed("rtsp://viewer@localhost:8554/a?b=c", ["127.0.0.0/8", "::1/128"])
    assert (place.port, place.url) == (8554, "rtsp://localhost:8554/a?b=c")
    assert set(place.addresses) <= {"127.0.0.1", "::1"}
    with pytest.raises(AccessError, match="outside LOOKOUT_CAMERA_NETWORKS"):
        placed("rtsp://169.254.169.254/latest", ["10.20.0.0/16"])


@pytest.mark.parametrize("scheme", ["rtsp", "rtsps"])
def test_what_was_checked_is_what_is_asked(scheme: str) -> None:
    with answering(b"") as url:
        port = url.rsplit(":", 1)[1].split("/")[0]
        connection, numeric = placed(f"{scheme}://localhost:{port}/live", ["127.0.0.0/8", "::1"]).connect(
            10.0
        )
        with connection:
            assert connection.getpeername() == ("127.0.0.1", int(port))
        assert numeric == f"{scheme}://127.0.0.1:{port}/live"


def test_a_closed_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match=rf"^cannot reach 127\.0\.0\.1:{port}: Connection refused$"):
        placed(f"rtsp://viewer:secret@127.0.0.1:{port}/stream", []).connect(5.0)


@pytest.mark.parametrize(
    "url",
    [
        "rtsp://u:secret@camera.invalid/stream",
        "rtsp://camera:99999/stream",
        "rtsp://u:secret@[::/x",
        "rtsp://",
    ],
)
def test_a_name_nobody_knows_and_an_address_that_is_none_are_said(url: str) -> None:
    with pytest.raises(OSError, match=r"^cannot reach ") as caught:
        placed(url, []).connect(5.0)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b'RTSP/1.0 401 Unauthorized\r\nWWW-Authenticate: Basic realm="x"\r\n\r\n', "in the clear"),
        (b"RTSP/1.0 302 Moved\r\nLocation: rtsp://evil/\r\n\r\n", "redirects"),
    ],
)
def test_what_would_take_the_password_along_is_refused(reply: bytes, words: str) -> None:
    with pytest.raises(AccessError, match=words):
        check(reply)


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
    check(reply)


def test_basic_may_be_allowed() -> None:
    reply = b'RTSP/1.0 401 Unauthorized\r\nWWW-Authenticate: Basic realm="x"\r\n\r\n'
    check(reply, basic=True)
