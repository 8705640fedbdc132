"""Fetches URIs from allowed hosts only, at the address that was checked, without redirects and within a time
limit.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import httpcore

from lookout.errors import BadRecordError, TransientError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], Sequence[str]]
PORTS = {"http": 80, "https": 443}
#: a fetch ends if the host sends nothing for this many seconds, or fewer bytes per second than this over that
#: time. Otherwise a host could hold the connection until the deadline by sending a byte now and then
QUIET_S: Final = 20.0
LEAST_RATE: Final = 1 << 14
# IPv6 networks whose addresses contain an IPv4 address, with the number of bits to its right: RFC 4291
# (compatible, mapped), 6052 (NAT64), 3056 (6to4). Teredo and local NAT64 (RFC 8215) obscure the IPv4 address,
# so they are never allowed.
_CARRIERS = (("::/96", 0), ("::ffff:0:0/96", 0), ("64:ff9b::/96", 0), ("2002::/16", 80))
_HIDING = tuple(ipaddress.ip_network(network) for network in ("2001::/32", "64:ff9b:1::/48"))


def uri_of(value: bytes) -> str:
    """Return the URI of a `text/uri-list` value (RFC 2483: comments begin with #).

    Raises:
        BadRecordError: The value is not ASCII, or does not hold exactly one URI.
    """
    try:
        lines = [line.strip() for line in value.decode("ascii").splitlines()]
    except UnicodeDecodeError as error:
        raise BadRecordError(
            "bad-uri", "a URI list must be ASCII: percent-encode other characters"
        ) from error
    uris = [line for line in lines if line and not line.startswith("#")]
    if len(uris) != 1:
        raise BadRecordError(
            "bad-uri", f"a segment's value must contain exactly one URI, but contains {len(uris)}"
        )
    return uris[0]


def resolve(host: str, port: int) -> list[str]:
    """Return all addresses of a host."""
    return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})


@dataclass(frozen=True)
class UriFetcher:
    """Fetches bytes by HTTP.

    Args:
        schemes: allowed schemes.
        hosts: globs of allowed hosts. A host given as an address must be listed without wildcards.
        networks: private networks (CIDR) that are allowed although they are not public.
        limit: maximum bytes of one answer.
        timeout_s: seconds for one whole fetch, from the DNS lookup to the last byte.
        settings: prefix of the settings that allow schemes, hosts and networks, for messages.
    """

    schemes: Sequence[str]
    hosts: Sequence[str]
    networks: Sequence[str] = ()
    limit: int = 16 << 20
    timeout_s: float = 30.0
    resolver: Resolver = field(default=resolve)
    settings: str = "LOOKOUT_URI"

    def fetch(self, uri: str) -> bytes:
        """Return the bytes of a URI, fetched in one attempt.

        Raises:
            BadRecordError: it may not be fetched, or the answer is of no use.
            TransientError: the host does not answer, or is unavailable for now.
        """
        body = bytearray()
        self.stream(uri, body.extend)
        return bytes(body)

    def place(self, uri: str) -> tuple[SplitResult, str]:
        """Return the parts of a URI and the checked address of its host.

        Raises:
            BadRecordError: it may not be fetched.
            TransientError: its host does not resolve now.
        """
        url = self._allowed(uri)
        return url, self._checked(url)

    def stream(self, uri: str, take: Callable[[bytes], object]) -> None:
        """Fetch the bytes of a URI piece by piece, in one attempt; `take` may have been called before an
        error is raised.

        Args:
            uri: The URI.
            take: Called with every piece, in order.

        Raises:
            BadRecordError: it may not be fetched, or the answer is of no use.
            TransientError: the host does not answer, or is unavailable for now.
        """
        deadline = time.monotonic() + self.timeout_s
        url, address = self.place(uri)
        with passing(url), connected(address, Deadline(deadline)) as pool:
            where, headers = request_of(url)
            with pool.stream("GET", where, headers=headers) as answer:
                self._check(answer)
                self._body(answer, deadline, take)

    def _allowed(self, uri: str) -> SplitResult:
        try:
            url = urlsplit(uri)
            host, _ = url.hostname or "", url.port
        except ValueError as error:
            raise BadRecordError("bad-uri", str(error)) from error
        if url.scheme not in self.schemes or url.scheme not in PORTS:
            raise BadRecordError(
                "uri-refused",
                f"scheme {url.scheme!r} is not allowed: add it to {self.settings}_SCHEMES, which is now "
                f"{','.join(self.schemes)}",
            )
        if url.username is not None or url.password is not None:
            raise BadRecordError("uri-refused", "a URI must not contain a user name or password")
        # Otherwise a newline in a URI could start another header of the request.
        if not uri.isprintable() or " " in uri:
            raise BadRecordError("bad-uri", "a URI must not contain spaces or control characters")
        self.check_host(host)
        return url

    def check_host(self, host: str) -> None:
        """Check that a host is allowed, whatever its addresses are.

        Raises:
            BadRecordError: The host is not allowed; the message names the setting.
        """
        host = host.lower()
        named = any(host == pattern.lower() for pattern in self.hosts)
        if not named and (
            is_address(host) or not any(fnmatchcase(host, pattern.lower()) for pattern in self.hosts)
        ):
            allowed = f"{self.settings}_HOSTS={','.join(self.hosts)}"
            itself = "; an address must be listed itself" if is_address(host) else ""
            raise BadRecordError("uri-refused", f"host {host!r} is not allowed; {allowed}{itself}")

    def _checked(self, url: SplitResult) -> str:
        """Check all addresses of a URL's host and return one of them, which the fetch uses whatever DNS says
        later.
        """
        host = url.hostname or ""
        try:
            addresses = self.resolver(host, url.port or PORTS[url.scheme])
        except OSError as error:
            raise TransientError(f"{host} does not resolve ({error})") from error
        if not addresses:
            raise TransientError(f"{host} does not resolve")
        self.check_addresses(host, addresses)
        return addresses[0]

    def check_addresses(self, host: str, addresses: Iterable[str]) -> None:
        """Check that every address of a host may be reached.

        Raises:
            BadRecordError: An address is not allowed; the message names the address and the setting.
        """
        for address in addresses:
            # The zone (as in `fe80::1%eth0`) is removed, because `ipaddress` would compare it, too.
            if not self._reachable(ipaddress.ip_address(address.split("%")[0])):
                raise BadRecordError(
                    "uri-refused",
                    f"{host} resolves to {address}, which is not a public address; "
                    f"{self.settings}_NETWORKS={','.join(self.networks)}",
                )

    def _reachable(self, address: Address) -> bool:
        within = carried(address)
        if within is not None:
            return self._reachable(within)
        if any(address in ipaddress.ip_network(network) for network in self.networks):
            return True
        hidden = any(address in network for network in _HIDING)
        return address.is_global and not address.is_multicast and not hidden

    def _check(self, answer: httpcore.Response) -> None:
        check_status(answer, 200)
        headers = {name.lower(): value for name, value in answer.headers}
        coding = headers.get(b"content-encoding", b"identity").strip().lower()
        if coding not in {b"", b"identity"}:
            raise BadRecordError(
                "uri-encoding", f"the host sends the content encoding {coding[:40]!r}, which is not accepted"
            )
        length = headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > 18 or int(length) > self.limit):
            announced = length[:20].decode()
            raise BadRecordError(
                "too-many-bytes",
                f"the host announces {announced} bytes, which exceeds the limit of {self.limit}",
            )

    def _body(self, answer: httpcore.Response, deadline: float, take: Callable[[bytes], object]) -> None:
        size = 0
        for chunk in answer.iter_stream():
            size += len(chunk)
            if size > self.limit:
                raise BadRecordError(
                    "too-many-bytes", f"the host sends more than the limit of {self.limit} bytes"
                )
            take(chunk)
            _left(deadline)


@dataclass
class Deadline:
    """The time by which a fetch must end, in monotonic seconds."""

    at: float

    def left(self) -> float:
        """Return the seconds left.

        Raises:
            httpcore.ReadTimeout: The deadline has passed.
        """
        return _left(self.at)


def request_of(url: SplitResult) -> tuple[httpcore.URL, dict[bytes | str, bytes | str]]:
    """Return the target of a request for a URL, and the headers that every request has."""
    host, port = url.hostname or "", url.port or PORTS[url.scheme]
    name = f"[{host}]" if ":" in host else host
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    return httpcore.URL(scheme=url.scheme, host=host, port=port, target=target), {
        "host": name if port == PORTS[url.scheme] else f"{name}:{port}",
        "accept": "*/*",
        # Compressed bytes could grow beyond the limit that was checked.
        "accept-encoding": "identity",
        "user-agent": "lookout",
    }


def connected(address: str, deadline: Deadline) -> httpcore.ConnectionPool:
    """Return a connection pool to one address, whatever host the URL names; every wait ends at the
    deadline.
    """
    tls = _authorities(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    return httpcore.ConnectionPool(ssl_context=tls, network_backend=_Pinned(address, deadline))


@lru_cache(maxsize=2)
def _authorities(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    """Return the certificate authorities of the system, or of SSL_CERT_FILE and SSL_CERT_DIR.

    They are cached, because reading them costs more than a small request.
    """
    return ssl.create_default_context()


def check_status(answer: httpcore.Response, *good: int) -> None:
    """Check the status of an answer.

    Raises:
        BadRecordError: the status is not among `good` and will not change.
        TransientError: the host is unavailable for now (429 or 5xx).
    """
    if answer.status == 429 or answer.status >= 500:
        raise TransientError(f"the host answers with status {answer.status}")
    if 300 <= answer.status < 400:
        raise BadRecordError("uri-refused", f"status {answer.status}: redirects are not followed")
    if answer.status not in good:
        raise BadRecordError("uri-status", f"status {answer.status}")


@contextmanager
def passing(url: SplitResult) -> Iterator[None]:
    """Turn network failures and timeouts in the block into transient errors.

    Raises:
        TransientError: The network failed, or the deadline has passed.
    """
    try:
        yield
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
        raise TransientError(f"{url.hostname}: {type(error).__name__}: {error}") from error


def is_address(host: str) -> bool:
    """Whether a host is an address in any form that a resolver accepts: 127.1, 0x7f.1, 2130706433, ::1."""
    try:
        socket.inet_aton(host)
    except OSError:
        return ":" in host
    return True


def carried(address: Address) -> Address | None:
    """Return the IPv4 address inside an IPv6 address; None if it has none."""
    if isinstance(address, ipaddress.IPv4Address) or int(address) <= 1:
        return None
    for network, right in _CARRIERS:
        if address in ipaddress.ip_network(network):
            return ipaddress.IPv4Address((int(address) >> right) & 0xFFFFFFFF)
    return None


def _left(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise httpcore.ReadTimeout("the fetch took too long")
    return remaining


class _Pinned(httpcore.SyncBackend):
    """Connects to one address, whatever host the URL names; every wait ends at the deadline."""

    def __init__(self, address: str, deadline: Deadline) -> None:
        self._address, self._deadline = address, deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to the pinned address."""
        stream = super().connect_tcp(
            self._address, port, self._deadline.left(), local_address, socket_options
        )
        return _Timed(stream, self._deadline)


class _Timed(httpcore.NetworkStream):
    """A connection whose waits end at the deadline, and whose host must send at a minimum rate."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline
        self._waited_s, self._came = 0.0, 0  # since the request, or since the rate was checked

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        since = time.monotonic()
        data = self._stream.read(max_bytes, min(self._deadline.left(), QUIET_S))
        self._waited_s += time.monotonic() - since  # excludes time in which nobody reads
        self._came += len(data)
        if self._waited_s >= QUIET_S:
            if self._came < QUIET_S * LEAST_RATE:
                raise httpcore.ReadTimeout(f"{self._came} bytes in {self._waited_s:.0f} s")
            self._waited_s, self._came = 0.0, 0
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._waited_s, self._came = 0.0, 0
        self._stream.write(buffer, min(self._deadline.left(), QUIET_S))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        wrapped = self._stream.start_tls(ssl_context, server_hostname, self._deadline.left())
        return _Timed(wrapped, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
