"""The fleet's gRPC credential, in two Kubernetes secrets: an authority, and one certificate for all
stages.

`python -m lookout.services.controller.credential` creates both before a release starts. The controller renews
the certificate when a third of its life is left. Running services reread the files.
"""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from kubernetes import client
from kubernetes.client.rest import ApiException

from lookout.services.controller.cluster import PatientClient, run_job
from lookout.text import visible

_AUTHORITY_LIFE = timedelta(days=3650)
_BACKDATED = timedelta(minutes=5)  # because nodes' clocks differ
_MOST_TRIES = 5


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes


def make_authority(name: str, now: datetime) -> Pair:
    """Make a certificate authority for a fleet."""
    key = ec.generate_private_key(ec.SECP256R1())
    # The authority's name differs from its certificates', because a certificate whose issuer equals its
    # subject counts as self-signed.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority")])
    certificate = (
        _begun(subject, subject, key, now, now + _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def make_certificate(authority: Pair, dns_name: str, life: timedelta, now: datetime) -> Pair:
    """Make a certificate for a fleet's servers and clients, signed by its authority."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key, None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not an elliptic curve key")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, dns_name)])
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _begun(subject, issuer.subject, key, now, min(now + life, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(dns_name)]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return _pair(certificate, key)


def is_due(certificate: bytes, dns_name: str, now: datetime) -> bool:
    """Return whether a certificate must be replaced, because at most a third of its life is left or it has a
    different name.
    """
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return True
    life = parsed.not_valid_after_utc - parsed.not_valid_before_utc
    return now >= parsed.not_valid_after_utc - life / 3 or dns_name not in names.get_values_for_type(
        x509.DNSName
    )


class Credential:
    """A fleet's two Kubernetes secrets: ``<secret>`` for the stages, ``<secret>-authority`` for the
    controller.

    Args:
        namespace: The secrets' namespace.
        secret: Name of the secret that the stages mount; it contains ca.crt, tls.crt and tls.key.
        dns_name: The certificate's name (the stages' LOOKOUT_GRPC_TLS_NAME).
        days: Number of days for which a certificate is valid.
    """

    def __init__(self, namespace: str, secret: str, dns_name: str, days: float) -> None:
        self._namespace = namespace
        self._secret, self._authority = secret, f"{secret}-authority"
        self._dns_name = dns_name
        self._life = timedelta(days=days)
        self._api = client.CoreV1Api(PatientClient())

    def ensure(self, now: datetime | None = None) -> str:
        """Create the certificate if it is missing, or renew it if it is due. Return "made" or "renewed", or
        "" if there was nothing to do.

        If two writers race, the API server rejects the second one's write, and the second one reads and tries
        again.
        """
        now = now or datetime.now(UTC)
        for _ in range(_MOST_TRIES):
            try:
                return self._ensure(now)
            except ApiException as error:
                if error.status != 409:
                    raise
        raise RuntimeError(f"another writer changed secret {self._secret} during every attempt")

    def _ensure(self, now: datetime) -> str:
        kept = self._read(self._authority)
        if kept is None:
            authority = make_authority(self._dns_name, now)
            self._write(self._authority, None, {"tls.crt": authority.certificate, "tls.key": authority.key})
        else:
            authority = Pair(_bytes(kept, "tls.crt"), _bytes(kept, "tls.key"))
        secret = self._read(self._secret)
        current = secret is not None and _bytes(secret, "ca.crt") == authority.certificate
        if secret is not None and current and not is_due(_bytes(secret, "tls.crt"), self._dns_name, now):
            return ""
        certificate = make_certificate(authority, self._dns_name, self._life, now)
        files = {
            "ca.crt": authority.certificate,
            "tls.crt": certificate.certificate,
            "tls.key": certificate.key,
        }
        self._write(self._secret, secret, files)
        return "made" if secret is None else "renewed"

    def _read(self, name: str) -> client.V1Secret | None:
        try:
            return self._api.read_namespaced_secret(name, self._namespace)
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def _write(self, name: str, existing: client.V1Secret | None, files: Mapping[str, bytes]) -> None:
        """Create a secret, or replace an existing one, which must not have changed since it was read."""
        data = {key: base64.b64encode(value).decode() for key, value in files.items()}
        labels = {"app.kubernetes.io/part-of": "lookout", "app.kubernetes.io/component": "credential"}
        metadata = client.V1ObjectMeta(name=name, labels=labels)
        if existing is None:
            body = client.V1Secret(metadata=metadata, data=data, type="kubernetes.io/tls")
            self._api.create_namespaced_secret(self._namespace, body)
            return
        metadata.resource_version = existing.metadata.resource_version
        body = client.V1Secret(metadata=metadata, data=data, type="kubernetes.io/tls")
        self._api.replace_namespaced_secret(name, self._namespace, body)


def _bytes(secret: client.V1Secret, key: str) -> bytes:
    return base64.b64decode((secret.data or {}).get(key, ""))


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    encoding = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    text = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    return Pair(certificate.public_bytes(encoding), text)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _BACKDATED)
        .not_valid_after(end)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Create or renew the credential if necessary; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Create the fleet's gRPC credential, or renew it if it is due."
    )
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--secret", required=True)
    parser.add_argument("--dns-name", required=True)
    parser.add_argument("--days", type=float, required=True)
    options = parser.parse_args(arguments)

    def make() -> None:
        change = Credential(options.namespace, options.secret, options.dns_name, options.days).ensure()
        print(visible(f"secret {options.secret}: {change or 'nothing to do'}"))

    return run_job("credential", make)


if __name__ == "__main__":
    sys.exit(main())
