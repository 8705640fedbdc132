"""Segments by URI: fetched from allowed hosts only, at the address that was checked, without redirects."""

import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from lookout.runtime import BadRecordError

__all__ = ["UriFetcher", "uri_of"]

Resolver = Callable[[str, int], Sequence[str]]
PORTS = {"http": 80, "https": 443}


class _AwayError(Exception):
    """The host did not answer, or said that it cannot just now."""


def uri_of(value: bytes) -> str:
    """The URI of a `text/uri-list` value (RFC 2483: comments begin with #). Raises BadRecordError."""
    try:
        lines = [line.strip() for line in value.decode("ascii").splitlines()]
    except UnicodeDecodeError as error:
        raise BadRecordError("bad-uri", "a URI list is ASCII; escape other characters") from error
    found = [line for line in lines if line and not line.startswith("#")]
    if len(found) != 1:
        raise BadRecordError("bad-uri", f"a segment is one URI, not {len(found)}")
    return found[0]


def resolve(host: str, port: int) -> list[str]:
    """All addresses of a host."""
    return sorted({str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})


@dataclass(frozen=True)
class UriFetcher:
    """Fetches bytes by HTTP.

    schemes, hosts (globs): what is allowed; networks: private networks (CIDR) that are allowed all the same;
    most: bytes; timeout_s: for a fetch.
    """

    schemes: Sequence[str]
    hosts: Sequence[str]
    networks: Sequence[str] = ()
    limit: int = 16 << 20
    timeout_s: float = 20.0
    resolver: Resolver = field(default=resolve)

    def fetch(self, uri: str) -> bytes:
        """The bytes behind a URI. Raises BadRecordError, also for a host that stays away for three tries."""
        url = self._allowed(uri)
        try:
            for attempt in Retrying(
                stop=stop_after_attempt(3),
                wait=wait_exponential_jitter(multiplier=0.2, max=2.0),
                retry=retry_if_exception_type(_AwayError),
                reraise=True,
            ):
                with attempt:
                    return self._get(url, self._pinned(url))
        except _AwayError as error:
            raise BadRecordError("uri-unavailable", f"{url.host}: {error}") from error
        raise AssertionError("unreachable")

    def _allowed(self, uri: str) -> httpx.URL:
        try:
            url = httpx.URL(uri)
        except httpx.InvalidURL as error:
            raise BadRecordError("bad-uri", str(error)) from error
        if url.scheme not in self.schemes or url.scheme not in PORTS:
            raise BadRecordError(
                "uri-refused",
                f"scheme {url.scheme!r} is not allowed; LOOKOUT_URI_SCHEMES={','.join(self.schemes)}",
            )
        if url.userinfo:
            raise BadRecordError("uri-refused", "a URI with a user name or password is not fetched")
        host = url.host.lower()
        if not any(fnmatchcase(host, pattern.lower()) for pattern in self.hosts):
            raise BadRecordError(
                "uri-refused", f"host {host!r} is not allowed; LOOKOUT_URI_HOSTS={','.join(self.hosts)}"
            )
        return url

    def _pinned(self, url: httpx.URL) -> str:
        """One address of the host, all of them checked: the fetch goes there whatever DNS says a moment
        later.
        """
        try:
            addresses = self.resolver(url.host, url.port or PORTS[url.scheme])
        except OSError as error:
            raise _AwayError(f"does not resolve ({error})") from error
        if not addresses:
            raise _AwayError("does not resolve")
        for address in addresses:
            if not self._reachable(ipaddress.ip_address(address.split("%")[0])):
                raise BadRecordError(
                    "uri-refused",
                    f"{url.host} resolves to {address}, which is no public address; "
                    f"LOOKOUT_URI_NETWORKS={','.join(self.networks)}",
                )
        return addresses[0]

    def _reachable(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        mapped = getattr(address, "ipv4_mapped", None)
        address = mapped or address
        if any(address in ipaddress.ip_network(network) for network in self.networks):
            return True
        return address.is_global and not address.is_multicast

    def _get(self, url: httpx.URL, address: str) -> bytes:
        pinned = url.copy_with(host=address)
        default = url.port is None or url.port == PORTS[url.scheme]
        headers = {"host": url.host if default else f"{url.host}:{url.port}", "accept-encoding": "identity"}
        extensions = {"sni_hostname": url.host}
        try:
            with (
                httpx.Client(timeout=self.timeout_s, trust_env=False, follow_redirects=False) as client,
                client.stream("GET", pinned, headers=headers, extensions=extensions) as answer,
            ):
                self._check(answer)
                return self._body(answer)
        except httpx.TransportError as error:
            raise _AwayError(f"{type(error).__name__}: {error}") from error

    def _check(self, answer: httpx.Response) -> None:
        if answer.status_code == 429 or answer.status_code >= 500:
            raise _AwayError(f"status {answer.status_code}")
        if answer.is_redirect:
            raise BadRecordError("uri-refused", f"status {answer.status_code}: redirects are not followed")
        if answer.status_code != 200:
            raise BadRecordError("uri-status", f"status {answer.status_code}")
        length = answer.headers.get("content-length", "")
        if length.isdigit() and int(length) > self.limit:
            raise BadRecordError("too-many-bytes", f"{length} bytes exceed the limit of {self.limit}")

    def _body(self, answer: httpx.Response) -> bytes:
        body = bytearray()
        for chunk in answer.iter_raw():
            body += chunk
            if len(body) > self.limit:
                raise BadRecordError("too-many-bytes", f"more than the limit of {self.limit} bytes")
        return bytes(body)
