"""Defensive reads of Redis: a key of the wrong type or an invalid value counts as absent.

Redis is only an index, so an invalid entry is removed, and its holder writes it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import redis
import structlog

from lookout.text import clean

Kind = Literal["hash", "string", "zset"]
#: how a client decodes invalid UTF-8: into text that no fleet writes
ENCODING_ERRORS: Final = "backslashreplace"

_log = structlog.get_logger(__name__)


def with_types(client: redis.Redis, kinds: Mapping[str, Kind], ask: Callable[[], Any]) -> Any:
    """Run a Redis call; if a key has the wrong type, remove the key and run the call once more.

    Args:
        client: Redis.
        kinds: The expected type of each key.
        ask: Reads or writes the keys; it may be called twice.

    Raises:
        RedisError: `ask` failed for another reason.
    """
    try:
        return ask()
    except redis.ResponseError as error:
        if not is_wrong_type(error):
            raise
    for key, kind in kinds.items():
        actual = client.type(key)
        if actual not in (kind, kind.encode(), "none", b"none"):
            _log.warning("a key of the wrong type was removed", key=clean(key), type=str(actual), needed=kind)
            client.delete(key)
    return ask()


def is_wrong_type(error: redis.ResponseError) -> bool:
    """Whether Redis rejected a command because its key holds another type.

    The error's code is the first word of Redis's message. For a pipeline, redis-py puts the command before
    the message.
    """
    return str(error).rpartition(" of pipeline caused error: ")[2].startswith("WRONGTYPE")


def required(answers: list[Any]) -> list[Any]:
    """Return the answers of a pipeline that was run with `raise_on_error=False`.

    Raises:
        RedisError: An answer is an error; the first one is raised.
    """
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def number_of(value: bytes | str) -> float | None:
    """Parse a finite number; None if the value is not one."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def text_of(value: bytes | str) -> str | None:
    """Return a value as text; None if it is not UTF-8."""
    try:
        return value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError:
        return None
