"""The fleet's certificate works for mutual TLS, is replaced in time, and never by another authority's."""

from __future__ import annotations

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from lookout.services.controller.credential import Pair, is_due, make_authority, make_certificate

NAME = "fleet.internal"
NOW = datetime.now(UTC)
LIFE = timedelta(days=90)


def context(purpose: int, folder: Path, authority: Pair, pair: Pair) -> ssl.SSLContext:
    folder.mkdir(exist_ok=True)
    for name, text in (("ca", authority.certificate), ("crt", pair.certificate), ("key", pair.key)):
        (folder / name).write_bytes(text)
    made = ssl.SSLContext(purpose)
    made.load_verify_locations(folder / "ca")
    made.load_cert_chain(folder / "crt", folder / "key")
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """Both sides of one handshake; returns what the server said."""
    left, right = socket.socketpair()

    def serve() -> None:
        try:
            with server.wrap_socket(left, server_side=True) as secured:
                secured.sendall(b"hello")
        except (ssl.SSLError, OSError):
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(right, server_hostname=NAME) as secured:
            return secured.recv(5).decode()
    finally:
        thread.join()


def test_both_sides_accept_the_fleets_certificate(tmp_path: Path) -> None:
    authority = make_authority(NAME, NOW)
    pair = make_certificate(authority, NAME, LIFE, NOW)
    server = context(ssl.PROTOCOL_TLS_SERVER, tmp_path / "s", authority, pair)
    client = context(ssl.PROTOCOL_TLS_CLIENT, tmp_path / "c", authority, pair)
    assert shake_hands(server, client) == "hello"


def test_another_fleets_certificate_is_refused(tmp_path: Path) -> None:
    ours, theirs = make_authority(NAME, NOW), make_authority(NAME, NOW)
    server = context(ssl.PROTOCOL_TLS_SERVER, tmp_path / "s", ours, make_certificate(ours, NAME, LIFE, NOW))
    client = context(
        ssl.PROTOCOL_TLS_CLIENT, tmp_path / "c", theirs, make_certificate(theirs, NAME, LIFE, NOW)
    )
    with pytest.raises(ssl.SSLError):
        shake_hands(server, client)


def test_a_certificate_is_due_when_a_third_of_its_life_is_left() -> None:
    pair = make_certificate(make_authority(NAME, NOW), NAME, LIFE, NOW)
    assert not is_due(pair.certificate, NAME, NOW + timedelta(days=59))
    assert is_due(pair.certificate, NAME, NOW + timedelta(days=61))
    assert is_due(pair.certificate, "other.internal", NOW)
    assert is_due(b"not a certificate", NAME, NOW)


def test_a_certificate_does_not_outlive_its_authority() -> None:
    authority = make_authority(NAME, NOW - timedelta(days=3640))
    found = x509.load_pem_x509_certificate(make_certificate(authority, NAME, LIFE, NOW).certificate)
    assert found.not_valid_after_utc <= NOW + timedelta(days=11)
