"""A certificate authority for tests of TLS."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = "lookout.test"
_HERE = ipaddress.ip_address("127.0.0.1")
_DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates for `NAME` and 127.0.0.1; valid from yesterday until tomorrow."""

    def __init__(self, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._sign(self._name, self._key.public_key(), authority=True)

    def write(self, folder: Path, common_name: str = NAME) -> dict[str, Path]:
        """Write ca.pem, cert.pem and key.pem, each replaced at once; gives them as gRPC settings."""
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        certificate = self._sign(subject, key.public_key(), authority=False)
        pem = serialization.Encoding.PEM
        contents = {
            "ca": self._certificate.public_bytes(pem),
            "cert": certificate.public_bytes(pem),
            "key": key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        }
        for name, content in contents.items():
            draft = folder / f".{name}"
            draft.write_bytes(content)
            os.replace(draft, folder / f"{name}.pem")
        return {f"grpc_{name}_file": folder / f"{name}.pem" for name in contents}

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            names = x509.SubjectAlternativeName([x509.DNSName(NAME), x509.IPAddress(_HERE)])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())
