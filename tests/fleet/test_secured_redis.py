"""The directory over TLS with a password: a real Redis behind a TLS front.

The redis-server that comes as a wheel is built without TLS, so the handshake is done in front of it.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from lookout.errors import StartupError
from lookout.local import RedisServer
from lookout.net import RedisSecurity, load_connections
from tests.certificates import Authority

pytestmark = pytest.mark.fleet

USER, PASSWORD = "lookout", "a-long-password"


class Front:
    """Ends TLS, asks for a client certificate, and passes bytes on to `port`."""

    def __init__(self, port: int, files: dict[str, Path]) -> None:
        self._target = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files["grpc_cert_file"], files["grpc_key_file"])
        self._context.load_verify_locations(files["grpc_ca_file"])
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with (
            suppress(OSError),
            self._context.wrap_socket(plain, server_side=True) as client,
            socket.create_connection(("127.0.0.1", self._target)) as server,
        ):
            back = threading.Thread(target=self._pass, args=(server, client), daemon=True)
            back.start()
            self._pass(client, server)
            back.join(10.0)

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def secured(own_redis: RedisServer, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Settings that reach a Redis over TLS as an ACL user, without the LOOKOUT_ prefix."""
    admin = redis.Redis.from_url(own_redis.url)
    admin.acl_setuser(
        USER, enabled=True, passwords=[f"+{PASSWORD}"], keys=["lookout:*"], categories=["+@all"]
    )
    admin.acl_setuser("default", enabled=False)
    files = Authority().write(tmp_path / "tls")
    (tmp_path / "password").write_text(PASSWORD + "\n")
    front = Front(own_redis.port, files)
    yield {
        "url": f"rediss://127.0.0.1:{front.port}/0",
        "redis_username": USER,
        "redis_password_file": str(tmp_path / "password"),
        "redis_ca_file": str(files["grpc_ca_file"]),
        "redis_cert_file": str(files["grpc_cert_file"]),
        "redis_key_file": str(files["grpc_key_file"]),
    }
    front.close()


def client(given: dict[str, str], **changed: str | None) -> redis.Redis:
    values = {**given, **changed}
    url = str(values.pop("url"))
    environ = {f"LOOKOUT_{name.upper()}": each for name, each in values.items() if each is not None}
    return load_connections(RedisSecurity, environ).redis_client(url, socket_timeout=30.0)


def test_the_directory_is_reached_with_certificates_and_password(secured: dict[str, str]) -> None:
    with client(secured) as directory:
        assert directory.set("lookout:key", b"1")
        assert directory.get("lookout:key") == b"1"


def test_another_authority_is_refused(secured: dict[str, str], tmp_path: Path) -> None:
    other = Authority("other").write(tmp_path / "other")
    directory = client(secured, redis_ca_file=str(other["grpc_ca_file"]))
    with directory, pytest.raises(redis.ConnectionError, match="certificate verify failed"):
        directory.ping()


def test_a_reader_without_a_certificate_is_refused(secured: dict[str, str]) -> None:
    directory = client(secured, redis_cert_file=None, redis_key_file=None)
    with directory, pytest.raises(redis.ConnectionError):
        directory.ping()


def test_a_wrong_password_is_refused_and_not_shown(secured: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "password").write_text("another-password\n")
    with client(secured) as directory, pytest.raises(redis.RedisError) as caught:
        directory.ping()
    assert "another-password" not in str(caught.value)


def test_certificates_need_a_url_of_tls(secured: dict[str, str]) -> None:
    with pytest.raises(StartupError, match="rediss://"):
        client(secured, url=secured["url"].replace("rediss", "redis", 1))
