"""A camera's password goes to the hosts that its secret names, and not in the clear."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from lookout.services.camera_agent.access import allowed_hosts, check_places, is_for
from lookout.services.camera_agent.agent import camera_fault
from lookout.v1.cameras_pb2 import Camera
from lookout.video.sandbox.places import AccessError, placed, with_credentials, without_addresses
from lookout.wire import to_json
from tests.acceptor import Acceptor

ROOT = Path(__file__).parents[3]


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """The URL of a server that gives one answer to whoever connects."""

    def serve(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(reply)

    server = Acceptor(serve)
    yield f"rtsp://{server.address}/live"
    server.close()


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


@pytest.mark.parametrize("url", ["rtsp://", "rtsp:///live", "rtsp://:554/live"])
def test_an_address_without_a_host_is_named_so(url: str) -> None:
    with pytest.raises(OSError, match=r"names no host: write it as rtsp://camera/stream"):
        placed(url, [])


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
    with pytest.raises(OSError, match=r"^cannot reach 127\.0\.0\.1:1: Connection refused$"):
        placed("rtsp://viewer:secret@127.0.0.1:1/stream", []).connect(5.0)


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


def test_a_password_is_put_where_the_url_has_a_place_for_it() -> None:
    """Some recorders want it in the path or the query."""
    secret = ("ad min", "p&w/d")
    assert with_credentials("rtsp://10.0.0.1/live", secret) == "rtsp://ad%20min:p%26w%2Fd@10.0.0.1/live"
    places = "rtsp://10.0.0.1/user={username}&password={password}&channel=1"
    assert with_credentials(places, secret) == "rtsp://10.0.0.1/user=ad%20min&password=p%26w%2Fd&channel=1"


def test_a_place_for_the_password_needs_tls_or_leave() -> None:
    check_places("rtsps://10.0.0.1/?pwd={password}", basic=False)
    check_places("rtsp://10.0.0.1/?pwd={password}", basic=True)
    with pytest.raises(AccessError, match=r"unencrypted \(\{password\}\): use rtsps://, or set"):
        check_places("rtsp://10.0.0.1/?pwd={password}", basic=False)


def test_no_address_of_an_error_is_shown() -> None:
    """FFmpeg names the address that it was given."""
    why = "[rtsp @ 0x1] method DESCRIBE failed: rtsp://a:b@10.0.0.1/s?pwd=hu, 401; use rtsps://, or allow it"
    shown = without_addresses(why, "rtsp://10.0.0.1/s")
    assert shown == "[rtsp @ 0x1] method DESCRIBE failed: rtsp://10.0.0.1/s 401; use rtsps://, or allow it"


CAMERA_URLS = [
    ("rtsp://10.0.0.1/stream1", True),
    ("rtsps://camera.example:322/live?channel=1&subtype=0", True),
    ("rtsp://10.0.0.1/user={username}&password={password}&channel=1", True),
    ("rtsp://10.0.0.1/?Pwd={password}", True),
    ("rtsp://admin:hush@10.0.0.1/stream1", False),
    ("rtsp://admin%3Ahush%4010.0.0.1/stream1", False),
    ("rtsp://10.0.0.1/?user=admin&PASSWORD=hush", False),
    ("rtsp://10.0.0.1/user=admin;pwd=hush", False),
    ("rtsp://10.0.0.1/?passwor%64=hush", False),
    ("rtsp://10.0.0.1/?password%3Dhush", False),
    ("rtsp://10.0.0.1/?password%3dhush", False),
    ("rtsp://10.0.0.1/?channel=1%26password=hush", False),
    ("rtsp://10.0.0.1/?password=%68ush", False),
    ("rtsp://10.0.0.1/?psw=hush", False),
    ("rtsp://10.0.0.1/?passwort=hush", False),
    ("rtsp://10.0.0.1/?auth=aHVzaA", False),
    ("rtsp://10.0.0.1/?token=hush", False),
    ("rtsp://10.0.0.1/?access_token=hush", False),
    ("rtsp://10.0.0.1/live,userPwd=hush", False),
    ("rtsp://10.0.0.1/?password={hush}", False),
    ("rtsp://10.0.0.1/?channel={number}", False),
    ("rtsp://10.0.0.1/Streaming%20Channels/101?profile=main%2F1&author=x&tokens=3", True),
    ("rtsp://10.0.0.1/?password=&user={username}", True),
    ("rtsp://10.0.0.1/?compass=north", True),
    ("http://10.0.0.1/stream1", False),
]


@pytest.mark.parametrize(("url", "accepted"), CAMERA_URLS)
def test_the_schema_of_a_camera_takes_no_password(url: str, accepted: bool) -> None:
    """The rules' patterns, which the API server runs (RE2), read here by Python."""
    (version,) = yaml.safe_load((ROOT / "charts/lookout/crds/cameras.yaml").read_text())["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    rules = [entry["rule"] for entry in spec["url"]["x-kubernetes-validations"]]
    refused = []
    for rule in rules:
        denied, pattern = re.fullmatch(r"(!?)self\.matches\('(.*)'\)", rule).groups()  # type: ignore[union-attr]
        refused.append(bool(re.search(pattern.replace("\\\\", "\\"), url)) == bool(denied))
    assert (not any(refused)) == accepted


@pytest.mark.parametrize(("url", "accepted"), CAMERA_URLS)
def test_a_record_of_the_topic_takes_no_password_either(url: str, accepted: bool) -> None:
    """Whoever writes cameras.v1 goes past the schema; its scheme is the player's to refuse."""
    fault = camera_fault("yard", to_json(Camera(id="yard", url=url)))
    assert (fault is None) == (accepted or url.startswith("http") or "number" in url)
    assert "hush" not in (fault or "")
