"""Decides where a camera's credentials may be sent. The secret must list the host, the host must be in the
cameras' networks, and the credentials must be encrypted unless LOOKOUT_BASIC_AUTH is set.
"""

from __future__ import annotations

import fnmatch
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from lookout.video.sandbox.places import PASSWORD_PLACE, AccessError


def allowed_hosts(folder: Path, secret: str) -> list[str]:
    """Return the hosts to which a secret may be sent: the names, patterns and networks in its key `hosts`,
    one per line.

    Raises:
        AccessError: The secret lists no hosts. Without a list, anyone who can write a Camera could have
            the password sent to any URL.
    """
    try:
        hosts = (folder / secret / "hosts").read_text().split()
    except OSError:
        hosts = []
    if not hosts:
        raise AccessError(
            f"secret {secret!r} does not say which hosts it may be sent to: add a key named 'hosts' that "
            "lists host names, patterns (*.cameras.example) or networks (10.20.0.0/16), one per line"
        )
    return hosts


def is_for(host: str, hosts: Sequence[str]) -> bool:
    """Return whether a secret whose key `hosts` has these entries may be sent to a host."""
    name = host.rstrip(".").lower()
    for entry in hosts:
        try:
            if ipaddress.ip_address(name) in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:
            if fnmatch.fnmatchcase(name, entry.lower()):
                return True
    return False


def check_places(url: str, *, basic: bool) -> None:
    """Check that a password in a URL's path or query may be sent, which needs TLS or `basic` (plain text
    allowed).

    Raises:
        AccessError: The URL would send the password in plain text, which is not allowed.
    """
    if urlsplit(url).scheme != "rtsps" and not basic:
        raise AccessError(
            f"the URL would send the password unencrypted ({PASSWORD_PLACE}): use rtsps://, or set "
            "LOOKOUT_BASIC_AUTH=true to allow this"
        )
