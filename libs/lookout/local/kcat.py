"""Checks whether this machine's kcat can log in to the fleet's broker.

librdkafka before 2.6.1 answers SCRAM with a nonce that RFC 5802 does not allow, and Kafka 4 rejects it as
"invalid credentials" (librdkafka pull request 4895). Some distributions still ship kcat with such a
librdkafka.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Final

LEAST: Final = (2, 6, 1)
"""The first version of librdkafka whose SCRAM Kafka 4 accepts."""
_VERSION = re.compile(r"librdkafka (\d+)\.(\d+)\.(\d+)")


def kcat_library() -> tuple[int, ...] | None:
    """Return the librdkafka version of the kcat on PATH; None if there is no kcat or its version is
    unknown.
    """
    path = shutil.which("kcat")
    if path is None:
        return None
    try:
        printed = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(printed.stdout + printed.stderr)
    return tuple(map(int, match.groups())) if match else None


def kcat_fault() -> str | None:
    """Return why the kcat on PATH cannot log in to a fleet that has a password, and what to do; None if it
    can, or if this is unknown.
    """
    version = kcat_library()
    if version is None or version >= LEAST:
        return None
    least, present = (".".join(map(str, numbers)) for numbers in (LEAST, version))
    return (
        f"this machine's kcat has librdkafka {present}, whose login Kafka rejects (invalid credentials): "
        f"install {least} or newer, start the fleet with --open, or use a client as in examples/publish.py"
    )
