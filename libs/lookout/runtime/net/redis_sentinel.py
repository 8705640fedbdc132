"""A client of the primary that Redis Sentinels name. In a separate module, because importing redis is
slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlsplit

import redis
from redis.sentinel import Sentinel

PORT = 26379
#: options that a connection to a Sentinel shares with one to the primary
_SHARED = ("socket_timeout", "socket_connect_timeout", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def primary_client(url: str, service: str, options: Mapping[str, Any], *, auth: bool) -> redis.Redis:
    """Return a client that asks the Sentinels for the primary at each new connection.

    Args:
        url: redis://host:port,host:port/db of the Sentinels, or rediss:// (TLS, also to the primary).
        service: The primary's name at the Sentinels.
        options: Connection options for the primary.
        auth: Whether the Sentinels require the primary's credentials.

    Raises:
        ValueError: The URL cannot be read.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or "@" in parts.netloc:
        raise ValueError("not a URL of Sentinels")
    hosts = [_place(place) for place in parts.netloc.split(",")]
    tls = {"ssl": True} if parts.scheme == "rediss" else {}
    shared = (*_SHARED, "credential_provider") if auth else _SHARED
    own = {name: options[name] for name in shared if name in options}
    sentinel: Any = Sentinel(hosts, sentinel_kwargs={**own, **tls})  # type: ignore[no-untyped-call]
    database = int(parts.path.strip("/") or 0)
    return cast("redis.Redis", sentinel.master_for(service, db=database, **{**options, **tls}))


def _place(place: str) -> tuple[str, int]:
    parts = urlsplit(f"//{place}")
    if not parts.hostname:
        raise ValueError("a Sentinel without a host")
    return parts.hostname, parts.port or PORT
