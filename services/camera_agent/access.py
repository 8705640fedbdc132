"""Where a camera's credentials may go: to the hosts that their secret names, in the networks of cameras,
not in the clear.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from lookout.video.sandbox.places import PASSWORD_PLACE, AccessError

_REPLY_BYTES = 16_384


def allowed_hosts(folder: Path, secret: str) -> list[str]:
    """The hosts that a secret is for: names, patterns and networks, one a line of its key `hosts`.

    Raises:
        AccessError: It names none. Whoever writes a Camera writes its URL, and would get the password sent
        anywhere.
    """
    try:
        hosts = (folder / secret / "hosts").read_text().split()
    except OSError:
        hosts = []
    if not hosts:
        raise AccessError(
            f"secret {secret!r} does not say which hosts it is for: give it the key hosts with names, "
            "patterns (*.cameras.example) or networks (10.20.0.0/16), one a line"
        )
    return hosts


def is_for(host: str, hosts: Sequence[str]) -> bool:
    """Whether a secret for `hosts` may be shown to a host."""
    name = host.rstrip(".").lower()
    for entry in hosts:
        try:
            if ipaddress.ip_address(name) in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:
            if fnmatch.fnmatchcase(name, entry.lower()):
                return True
    return False


def check_scheme(connection: socket.socket, url: str, patience_s: float, *, basic: bool) -> None:
    """Ask a camera without credentials how it wants them, before any are sent.

    Args:
        connection: To the camera; not used any more afterwards.
        url: An RTSP address without credentials.
        patience_s: Seconds for the whole exchange.
        basic: Whether a password may be sent in the clear.

    Raises:
        AccessError: It wants the password in the clear (Basic without TLS), or sends the agent to another
        place. OSError: It does not answer.
    """
    parts = urlsplit(url)
    if parts.scheme == "rtsps":
        return
    reply = _describe(connection, url, patience_s)
    status = re.match(r"RTSP/1\.\d (\d{3})", reply)
    if status is not None and status[1].startswith("3"):
        raise AccessError("the camera redirects to another address: credentials are not taken there")
    schemes = {scheme.lower() for scheme in re.findall(r"(?im)^www-authenticate:\s*(\w+)", reply)}
    if schemes and "digest" not in schemes and not basic:
        raise AccessError(
            "the camera takes the password in the clear only (Basic): use rtsps://, or allow it with "
            "LOOKOUT_BASIC_AUTH=true"
        )


def check_places(url: str, *, basic: bool) -> None:
    """Check that a URL may carry the password in its path or query, which is in the clear without TLS.

    Raises:
        AccessError: It may not.
    """
    if urlsplit(url).scheme != "rtsps" and not basic:
        raise AccessError(
            f"the URL carries the password in the clear ({PASSWORD_PLACE}): use rtsps://, or allow it with "
            "LOOKOUT_BASIC_AUTH=true"
        )


def _describe(connection: socket.socket, url: str, patience_s: float) -> str:
    """The head of the answer to DESCRIBE; bounded in bytes and in time, however slowly it comes."""
    deadline = time.monotonic() + patience_s
    connection.sendall(f"DESCRIBE {url} RTSP/1.0\r\nCSeq: 1\r\nAccept: application/sdp\r\n\r\n".encode())
    reply = b""
    while b"\r\n\r\n" not in reply and len(reply) < _REPLY_BYTES:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the camera does not answer in time")
        connection.settimeout(left)
        piece = connection.recv(4096)
        if not piece:
            break
        reply += piece
    return reply[:_REPLY_BYTES].decode("latin-1")
