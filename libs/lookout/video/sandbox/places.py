"""Resolves a camera's host once, and puts credentials into the camera's URL."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

from lookout.text import clean

#: placeholders in a camera's URL for the secret's user name and password, if these do not belong before the
#: host
USER_PLACE, PASSWORD_PLACE = "{username}", "{password}"

#: patterns that a camera's URL must not match, with the reason; charts/lookout/crds/cameras.yaml has the same
_SECRETS = (
    (re.compile(r"^rtsps?://[^/?#]*(@|%40)"), "a user name or password before its host"),
    (
        re.compile(
            r"(password|passwort|passwd|passphrase|pwd|token|secret|(^|[^a-z])(pass|psw|pw|auth|apikey))"
            r"=([^&;/{]|\{[^pu])",
            re.IGNORECASE,
        ),
        "a password",
    ),
    (
        re.compile(r"[?&;/][^=&;/?]*%[^=&;/?]*=|%3d", re.IGNORECASE),
        "a parameter name, or its =, in percent-encoding",
    ),
)
_PORTS = {"rtsp": 554, "rtsps": 322}
_ADDRESS = re.compile(r"\b\w+://[^\s,;]\S*")


class AccessError(RuntimeError):
    """The camera may not be accessed, or its credentials may not be used; the message says why."""


@dataclass(frozen=True, slots=True)
class CameraPlace:
    """A camera's resolved address.

    Attributes:
        addresses: Checked IP addresses of the camera's host.
        port: Port of the camera's server.
        url: The URL without credentials.
    """

    addresses: tuple[str, ...]
    port: int
    url: str

    def connect(self, patience_s: float) -> tuple[socket.socket, str]:
        """Connect to the first address that accepts; return the connection, and the URL with that address as
        its host, because the process that reads the connection cannot resolve names.

        Raises:
            OSError: No address accepts; the message names the host.
        """
        parts = urlsplit(self.url)
        failure: OSError | None = None
        for address in self.addresses:
            try:
                connection = socket.create_connection((address, self.port), patience_s)
            except OSError as error:
                failure = error
                continue
            return connection, _at(parts, address, self.port)
        why = getattr(failure, "strerror", None) or failure
        raise OSError(f"cannot reach {clean(parts.netloc.rpartition('@')[2], 100)}: {why}")


def placed(url: str, networks: Sequence[str]) -> CameraPlace:
    """Return a camera's resolved address, with all addresses of its host checked, so that a connection goes
    to a checked address.

    Args:
        url: An RTSP address.
        networks: Networks (CIDR) in which cameras may be; empty: every address is allowed.

    Raises:
        AccessError: One of the host's addresses is outside the networks.
        OSError: The host is unknown, or the URL is invalid; the message names it.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 554)
        if not parts.hostname:
            raise OSError("its address names no host: write it as rtsp://camera/stream")
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise OSError(f"cannot reach {clean(_public(url), 100) or 'a camera'}: {why}") from None
    addresses = tuple(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
    inside = [ipaddress.ip_network(network, strict=False) for network in networks]
    for address in addresses if networks else ():
        if not any(ipaddress.ip_address(address) in network for network in inside):
            raise AccessError(f"{clean(parts.hostname, 100)} is {address}, outside LOOKOUT_CAMERA_NETWORKS")
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return CameraPlace(addresses, port, bare)


def has_places(url: str) -> bool:
    """Whether a URL has placeholders for user name and password, because some recorders expect these in the
    path or query.
    """
    return USER_PLACE in url or PASSWORD_PLACE in url


def url_fault(url: str) -> str | None:
    """Check that a camera's URL has no password, which anyone who reads the topic or a log could see.

    Returns:
        Why the URL is rejected, without the URL itself; None if it is accepted.
    """
    for pattern, what in _SECRETS:
        if pattern.search(url):
            if pattern is _SECRETS[0][0]:
                return f"it contains {what}: leave them out, and in credentials name a secret that has them"
            return f"it contains {what}: write {PASSWORD_PLACE} in its place and name a secret in credentials"
    return None


def with_credentials(url: str, secret: tuple[str, str]) -> str:
    """Return an RTSP address with user name and password at its placeholders, or before the host if it has
    none.
    """
    user, password = (quote(part, safe="") for part in secret)
    if has_places(url):
        return url.replace(USER_PLACE, user).replace(PASSWORD_PLACE, password)
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.netloc}"))


def without_addresses(text: str, public: str) -> str:
    """Return an error text in which the camera's public address replaces every address, because FFmpeg shows
    the address that it was given, including its password.
    """
    return _ADDRESS.sub(lambda _: public, " ".join(text.split()))[:300]


def _public(url: str) -> str:
    """Return the host of a URL, which may be invalid, without anything that may be a password."""
    return url.rpartition("@")[2].rpartition("://")[2].partition("/")[0]


def _at(parts: SplitResult, address: str, port: int) -> str:
    host = f"[{address}]" if ":" in address else address
    return urlunsplit(parts._replace(netloc=f"{host}:{port}"))
