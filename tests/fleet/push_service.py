"""A push service with one browser: what it gets, decrypted with the browser's key as RFC 8291 says."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from lookout.v1.notifications_pb2 import WebPush
from tests.http_target import HttpTarget


def encoded(data: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    """The bytes of base64url without padding."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def point_of(key: ec.EllipticCurvePublicKey) -> bytes:
    """An uncompressed point."""
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)


def decrypt(body: bytes, key: ec.EllipticCurvePrivateKey, secret: bytes) -> bytes:
    """What a message says: its one record, without padding."""
    salt, size = body[:16], body[20]
    sender, record = body[21 : 21 + size], body[21 + size :]
    shared = key.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender))
    context = b"WebPush: info\0" + point_of(key.public_key()) + sender
    first = _derived(shared, secret, context, 32)
    content_key = _derived(first, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _derived(first, salt, b"Content-Encoding: nonce\0", 12)
    return AESGCM(content_key).decrypt(nonce, record, None).rstrip(b"\0").removesuffix(b"\2")


def _derived(key: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    return HKDF(hashes.SHA256(), size, salt, info).derive(key)


@dataclass
class PushService(HttpTarget):
    """A push service on 127.0.0.1, and its browser.

    Attributes:
        status: What it answers.
        got: Headers (lower case) and what the browser shows.
    """

    status: int = 201
    got: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.secret = os.urandom(16)

    def take(self, headers: dict[str, str], body: bytes) -> int:
        lowered = {name.lower(): value for name, value in headers.items()}
        self.got.append((lowered, json.loads(decrypt(body, self.key, self.secret))))
        return self.status

    @property
    def subscription(self) -> WebPush:
        """What the browser gives."""
        return WebPush(
            endpoint=f"{self.address}/browser",
            p256dh=encoded(point_of(self.key.public_key())),
            auth=encoded(self.secret),
        )
