"""Decides where a camera's credentials may be sent: only to hosts that their secret names, within the
cameras' networks, and not unencrypted.
"""

from __future__ import annotations

import fnmatch
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from lookout.video.sandbox.places import PASSWORD_PLACE, AccessError


def allowed_hosts(folder: Path, secret: str) -> list[str]:
    """Return the hosts that a secret is for: names, patterns and networks, one a line of its key `hosts`.

    Raises:
        AccessError: It names none. Otherwise anyone who can write a Camera could have the password sent to
            any URL.
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
    """Whether a secret for `hosts` may be sent to this host."""
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
    """Check that a URL may carry the password in its path or query: over TLS, or if plain text is allowed
    (`basic`).

    Raises:
        AccessError: It may not.
    """
    if urlsplit(url).scheme != "rtsps" and not basic:
        raise AccessError(
            f"the URL carries the password in the clear ({PASSWORD_PLACE}): use rtsps://, or allow it with "
            "LOOKOUT_BASIC_AUTH=true"
        )
