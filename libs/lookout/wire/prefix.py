"""The name prefix that separates installations which share a Kafka or a Redis.

Topics, consumer groups, transactional ids and Redis keys of a process begin with `LOOKOUT_PREFIX`. It is read
from the environment only once, because the topic table consists of constants. All processes of an
installation, including commands, need the same prefix.
"""

from __future__ import annotations

import os
import re
from typing import Final

NAME_PREFIX: Final = os.environ.get("LOOKOUT_PREFIX", "")
#: whether this is a process of a canary, which reads the fleet's topics and writes to its own
IS_CANARY: Final = bool(os.environ.get("LOOKOUT_CANARY"))
CANARY: Final = "canary"
#: prefix of all Redis keys of the fleet
FLEET_KEYS: Final = f"{NAME_PREFIX}lookout:"
#: prefix of all Redis keys that this process writes; in a canary it differs from the fleet's
REDIS_KEYS: Final = f"{FLEET_KEYS}{CANARY}:" if IS_CANARY else FLEET_KEYS
#: one hash per camera, written by the agent that pulls it: agent, state, error, segments, last_ms
CAMERA_REPORT: Final = FLEET_KEYS + "{{{camera}}}:report"
#: a valid prefix: characters that Kafka accepts in topic names, ending with a dot or dash as a separator
_PREFIXES: Final = re.compile(r"([a-z0-9][a-z0-9.-]{0,38}[.-])?")


def prefixed(name: str) -> str:
    """Return a name with this installation's prefix."""
    return NAME_PREFIX + name


def prefix_fault(prefix: str = NAME_PREFIX) -> str | None:
    """Return what is wrong with a prefix, as a phrase that begins with "must"; None if the prefix is
    valid.
    """
    if _PREFIXES.fullmatch(prefix):
        return None
    return (
        "must have at most 40 lower-case letters, digits, dots and dashes, begin with a letter or digit, "
        "and end with a dot or dash, for example site-a."
    )
