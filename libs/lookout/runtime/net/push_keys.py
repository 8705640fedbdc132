"""The key with which an installation authenticates its messages to push services (VAPID, RFC 8292)."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from lookout.disk import read_file
from lookout.errors import StartupError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec


def new_push_key() -> bytes:
    """Generate a private key; returns its PEM."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_push_key(path: Path, setting: str) -> ec.EllipticCurvePrivateKey:
    """Read the private key from a file.

    Args:
        path: The file.
        setting: The setting that names it, for messages.

    Raises:
        StartupError: The file cannot be read, or its key is not a P-256 key.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_pem_private_key(read_file(path, links=True), None)
    except (OSError, TypeError, ValueError) as error:
        raise StartupError(f"{setting}={path}: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise StartupError(
            f"{setting}={path}: the file must contain a P-256 private key; make a key with openssl "
            f"ecparam -name prime256v1 -genkey -noout"
        )
    return key


def public_push_key(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the public key as browsers take it: an uncompressed point, base64url without padding."""
    from cryptography.hazmat.primitives import serialization

    point = key.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    return base64.urlsafe_b64encode(point).rstrip(b"=").decode()


def push_key_pair(path: Path, setting: str) -> tuple[bytes, bytes]:
    """Return the private key in a file and its public key, both as PEM.

    Raises:
        StartupError: The file cannot be read, or its key is not a P-256 key.
    """
    from cryptography.hazmat.primitives import serialization

    public = read_push_key(path, setting).public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return read_file(path, links=True), pem
