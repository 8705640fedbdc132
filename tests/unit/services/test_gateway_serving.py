"""The gateway's HTTP server itself, on a real port: TLS, proxies, and callers that take too much."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from lookout.services.gateway import serving
from lookout.services.gateway.access import protect, slow
from lookout.services.gateway.access.limits import Followers
from lookout.services.gateway.app import make_app
from lookout.services.gateway.parts import Parts, make_parts
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.serving import HttpServer
from lookout.services.gateway.settings import GatewaySettings
from lookout.v1.access_pb2 import Role
from tests.certificates import Authority
from tests.eventually import eventually


@contextmanager
def served(folder: Path, **settings: Any) -> Iterator[tuple[int, Parts]]:
    """The whole application on a port, without Kafka; its history is empty."""
    given = {
        "mode": "local",
        "bootstrap": "127.0.0.1:1",
        "database_url": f"sqlite:///{folder}/history.db",
        "sign_in_file": str(folder / "link" / "secret"),
        **settings,
    }
    with ExitStack() as stack:
        parts = make_parts(GatewaySettings.model_validate(given))
        stack.callback(parts.database.close)
        stack.callback(parts.media.close)
        server = HttpServer(make_app(parts), parts.settings)
        threads = [threading.Thread(target=server.run), threading.Thread(target=parts.feed.run)]
        if parts.settings.http_cert_file is not None:
            threads.append(threading.Thread(target=server.follow_certificate))
        for thread in threads:
            thread.start()
        assert server.await_start(60.0)
        try:
            yield server.port, parts
        finally:
            parts.feed.stop()
            server.stop()
            for thread in threads:
                thread.join(30.0)


def cookie(parts: Parts, name: str = "ada") -> dict[str, str]:
    """The cookie of a new session."""
    return {"cookie": f"lookout-session={parts.sessions.begin(Principal(name, Role.ROLE_ADMINISTRATOR))}"}


def serial(port: int) -> int:
    """The serial number of the certificate that a new connection gets."""
    from cryptography import x509

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), 30) as plain,
        context.wrap_socket(plain) as connection,
    ):
        certificate = connection.getpeercert(binary_form=True)
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate).serial_number


def test_a_certificate_is_replaced_while_people_are_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_READ_EVERY_S", 0.1)
    authority, folder = Authority(), tmp_path / "tls"
    authority.write(folder)
    files = {"http_cert_file": folder / "cert.pem", "http_key_file": folder / "key.pem"}
    with ExitStack() as stack:
        port, _ = stack.enter_context(served(tmp_path, **files))
        url = f"https://127.0.0.1:{port}/healthz"
        trusted = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        client = stack.enter_context(httpx.Client(verify=trusted))
        assert client.get(url).status_code == 200
        first = serial(port)

        spare = tmp_path / "spare"
        authority.write(spare)
        os.replace(spare / "cert.pem", folder / "cert.pem")  # the key follows later, or never
        for _ in range(10):
            assert serial(port) == first
            threading.Event().wait(0.05)
        os.replace(spare / "key.pem", folder / "key.pem")
        eventually(lambda: serial(port) != first)
        assert client.get(url).status_code == 200


def failures(port: int, forwarded: str, count: int = 5) -> None:
    """Failed sign-ins that claim to come from an address."""
    for _ in range(count):
        answer = httpx.get(
            f"http://127.0.0.1:{port}/v1/session",
            headers={"authorization": "Bearer wrong", "x-forwarded-for": forwarded},
        )
        assert answer.status_code == 401, answer.text


def status(port: int, forwarded: str) -> int:
    headers = {"x-forwarded-for": forwarded}
    return httpx.get(f"http://127.0.0.1:{port}/v1/session", headers=headers).status_code


def test_a_trusted_proxy_says_where_calls_come_from(tmp_path: Path) -> None:
    with served(tmp_path, trusted_proxies="127.0.0.0/8,10.1.0.0/16") as (port, parts):
        parts.failures._clock = lambda: 0.0  # on a busy machine a second is over at once
        failures(port, "203.0.113.9")
        assert status(port, "203.0.113.9") == 429
        assert status(port, "203.0.113.10") == 401
        # What the caller itself put in front counts for nothing; proxies of ours are passed over.
        assert status(port, "198.51.100.1, 203.0.113.9") == 429
        assert status(port, "203.0.113.9, 10.1.2.3") == 429
        assert status(port, "203.0.113.9, 198.51.100.1") == 401


def test_nobody_else_does(tmp_path: Path) -> None:
    with served(tmp_path) as (port, parts):
        parts.failures._clock = lambda: 0.0
        failures(port, "203.0.113.9")
        assert status(port, "203.0.113.10") == 429


def test_many_calls_are_429_with_the_time_to_wait(tmp_path: Path) -> None:
    with served(tmp_path, calls_per_minute=3) as (port, parts):
        url = f"http://127.0.0.1:{port}/v1/session"
        ada, eve = cookie(parts), cookie(parts, "eve")
        answers = [httpx.get(url, headers=ada) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert 1 <= int(answers[3].headers["retry-after"]) <= 20
        assert answers[3].headers["content-type"] == "application/problem+json"
        assert httpx.get(url, headers=eve).status_code == 200


@pytest.mark.parametrize("announced", [True, False])
def test_a_large_body_is_413(tmp_path: Path, announced: bool) -> None:
    size = protect.BODY_BYTES + 1
    content = b" " * size if announced else (b" " * 65_536 for _ in range(size // 65_536 + 1))
    with served(tmp_path) as (port, parts):
        headers = {**cookie(parts), "x-csrf-token": "x", "content-type": "application/json"}
        url = f"http://127.0.0.1:{port}/v1/tokens"
        parts_session = httpx.get(f"http://127.0.0.1:{port}/v1/session", headers=headers).json()
        headers["x-csrf-token"] = parts_session["csrf"]
        assert httpx.post(url, content=content, headers=headers).status_code == 413


def closed(connection: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    connection.settimeout(60.0)
    received = b""
    while piece := connection.recv(65_536):
        received += piece
    return received


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nhost: a\r\nx-slow: "])
def test_headers_that_do_not_come_end_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(slow, "HEAD_S", 1.0)
    with served(tmp_path) as (port, _), socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(sent)
        ended = threading.Event()

        def trickle() -> None:
            while not ended.wait(0.2):
                try:
                    connection.sendall(b"a" if sent else b"")
                except OSError:
                    return

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            assert closed(connection) == b""
        except ConnectionResetError:
            pass
        finally:
            ended.set()
            thread.join()
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200


def test_a_second_request_of_a_connection_has_its_time_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow, "HEAD_S", 1.0)
    whole = b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n"
    with served(tmp_path) as (port, _), socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(whole)
        assert b"200 OK" in connection.recv(65_536)
        threading.Event().wait(1.5)  # idle between two requests: the server's own limit is longer
        connection.sendall(whole + whole[:20])
        received = closed(connection)
        assert received.count(b"200 OK") == 1


def test_a_slow_body_is_408(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protect, "BODY_S", 1.0)
    with served(tmp_path) as (port, parts):
        headers = cookie(parts)
        csrf = httpx.get(f"http://127.0.0.1:{port}/v1/session", headers=headers).json()["csrf"]
        head = (
            f"POST /v1/tokens HTTP/1.1\r\nhost: a\r\ncookie: {headers['cookie']}\r\nx-csrf-token: {csrf}\r\n"
            "content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head.encode())
            assert b"HTTP/1.1 408" in closed(connection)


def test_a_caller_has_twenty_streams_of_events(tmp_path: Path) -> None:
    with served(tmp_path) as (port, parts), ExitStack() as stack:
        url, ada = f"http://127.0.0.1:{port}/v1/events", cookie(parts)
        client = stack.enter_context(httpx.Client(limits=httpx.Limits(max_connections=50)))
        most = Followers().limit
        streams = [stack.enter_context(client.stream("GET", url, headers=ada)) for _ in range(most)]
        assert {stream.status_code for stream in streams} == {200}
        refused = client.get(url, headers=ada)
        assert refused.status_code == 429
        assert refused.headers["retry-after"]
        eve = stack.enter_context(client.stream("GET", url, headers=cookie(parts, "eve")))
        assert eve.status_code == 200
        streams[0].close()

        def another() -> bool:
            with client.stream("GET", url, headers=ada) as stream:
                return stream.status_code == 200

        eventually(another)


def test_the_server_needs_no_package_of_websockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway's image has none; uvicorn would import one before it serves anything."""
    for name in [
        name for name in sys.modules if name.startswith(("websockets", "uvicorn.protocols.websockets"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "websockets", None)
    with served(tmp_path) as (port, _):
        assert httpx.get(f"http://127.0.0.1:{port}/v1/incidents").status_code == 401
