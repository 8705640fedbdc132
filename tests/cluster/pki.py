"""The certificates of a test cluster: one authority, a certificate for every component, kubeconfigs."""

import base64
import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = datetime.timedelta(days=30)


@dataclass(frozen=True)
class Subject:
    """Whom a certificate is for."""

    file: str
    name: str
    group: str = ""
    dns: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


class Authority:
    """A certificate authority whose files lie in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lookout-test-cluster")])
        self._certificate = (
            _begun(name, name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(sign=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        _write_key(folder / "ca.key", self._key)
        (folder / "ca.crt").write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, subject: Subject) -> None:
        """Write ``<file>.key`` and ``<file>.crt`` for a subject."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, subject.name)]
        if subject.group:
            attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, subject.group))
        builder = _begun(x509.Name(attributes), self._certificate.subject, key.public_key())
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        builder = builder.add_extension(_usage(sign=False), critical=True)
        names = [x509.DNSName(each) for each in subject.dns]
        addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in subject.addresses]
        if names or addresses:
            builder = builder.add_extension(x509.SubjectAlternativeName([*names, *addresses]), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        _write_key(self.folder / f"{subject.file}.key", key)
        (self.folder / f"{subject.file}.crt").write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
        )

    def kubeconfig(self, file: str, server: str) -> Path:
        """Write a kubeconfig for the subject of ``file`` and return its path."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "c",
                    "cluster": {"server": server, "certificate-authority-data": self._base64("ca.crt")},
                }
            ],
            "users": [
                {
                    "name": "u",
                    "user": {
                        "client-certificate-data": self._base64(f"{file}.crt"),
                        "client-key-data": self._base64(f"{file}.key"),
                    },
                }
            ],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        path = self.folder / f"{file}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(content))
        return path

    def service_account_key(self) -> None:
        """Write the key pair that signs service account tokens."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        _write_key(self.folder / "sa.key", key)
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (self.folder / "sa.pub").write_bytes(public)

    def _base64(self, name: str) -> str:
        return base64.b64encode((self.folder / name).read_bytes()).decode()


def _begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
    )


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=sign,
        crl_sign=sign,
        key_encipherment=not sign,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
