"""Where a camera is: its addresses, looked up once, and its credentials in its URL."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

from lookout.text import clean

#: where a camera's URL wants the secret's user name and password, if not before the host
USER_PLACE, PASSWORD_PLACE = "{username}", "{password}"

#: what a URL of a camera must not hold, with why; charts/lookout/crds/cameras.yaml has the same patterns
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
        "a name, or its =, in percent-encoding",
    ),
)
_PORTS = {"rtsp": 554, "rtsps": 322}
_ADDRESS = re.compile(r"\b\w+://[^\s,;]\S*")


class AccessError(RuntimeError):
    """A camera that may not be asked, or not with its secret; the message says why."""


@dataclass(frozen=True, slots=True)
class CameraPlace:
    """Where a camera is.

    Attributes:
        addresses: Of its host, checked.
        port: Of its server.
        url: Without credentials.
    """

    addresses: tuple[str, ...]
    port: int
    url: str

    def connect(self, patience_s: float) -> tuple[socket.socket, str]:
        """A connection to the first address that takes one, and the URL with that address for its host: who
        reads the connection can look up no names.

        Raises:
            OSError: None does; the message names the host.
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
    """Where a camera is, with all addresses of its host, so that what was checked is what is asked.

    Args:
        url: An RTSP address.
        networks: Networks (CIDR) in which cameras live; none: every address is allowed.

    Raises:
        AccessError: The host, or one of its addresses, is outside the networks.
        OSError: The host is not known, or the URL is not valid; the message names it.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 554)
        if not parts.hostname:
            raise OSError("its address names no host; write rtsp://camera/stream")
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
    """Whether a URL says where user name and password belong: some recorders want them in path or query."""
    return USER_PLACE in url or PASSWORD_PLACE in url


def url_fault(url: str) -> str | None:
    """Why a camera's URL cannot be taken: anyone who reads the topic or a log would read its password.

    Returns:
        The reason, without the URL; None where it can.
    """
    for pattern, what in _SECRETS:
        if pattern.search(url):
            return f"it holds {what}: write {PASSWORD_PLACE} in its place and name a secret in credentials"
    return None


def with_credentials(url: str, secret: tuple[str, str]) -> str:
    """An RTSP address with user name and password: where it has a place for them, else before the host."""
    user, password = (quote(part, safe="") for part in secret)
    if has_places(url):
        return url.replace(USER_PLACE, user).replace(PASSWORD_PLACE, password)
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.netloc}"))


def without_addresses(text: str, public: str) -> str:
    """An error text in which any address is replaced by the camera's public one: FFmpeg names the one that it
    was given, with its password."""
    return _ADDRESS.sub(lambda _: public, " ".join(text.split()))[:300]


def _public(url: str) -> str:
    """The host of a URL that may be none, without what may be a password."""
    return url.rpartition("@")[2].rpartition("://")[2].partition("/")[0]


def _at(parts: SplitResult, address: str, port: int) -> str:
    host = f"[{address}]" if ":" in address else address
    return urlunsplit(parts._replace(netloc=f"{host}:{port}"))
