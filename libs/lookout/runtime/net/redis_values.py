"""Redis as others may have written it: a key of another type, or a text that is not one, counts as absent.

Redis is an index and never the truth, so what does not fit is removed and made again by whoever holds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import redis
import structlog

from lookout.text import clean

Kind = Literal["hash", "string", "zset"]
#: what a text that is not UTF-8 becomes where a client decodes: something that no fleet writes
ENCODING_ERRORS: Final = "backslashreplace"

_log = structlog.get_logger(__name__)


def with_types(client: redis.Redis, kinds: Mapping[str, Kind], ask: Callable[[], Any]) -> Any:
    """Ask Redis about keys; those of another type are removed, and it is asked once more.

    Args:
        client: Redis.
        kinds: The type that each key has.
        ask: Reads or writes them; may be called twice.

    Raises:
        RedisError: What `ask` raises for another reason.
    """
    try:
        return ask()
    except redis.ResponseError as error:
        if not is_wrong_type(error):
            raise
    for key, kind in kinds.items():
        actual = client.type(key)
        if actual not in (kind, kind.encode(), "none", b"none"):
            _log.warning("a key of another type is removed", key=clean(key), type=str(actual), needed=kind)
            client.delete(key)
    return ask()


def is_wrong_type(error: redis.ResponseError) -> bool:
    """Whether Redis refused a command because its key holds another type. The code is the first word of what
    Redis said; of a pipeline, redis-py puts the command in front of it."""
    return str(error).rpartition(" of pipeline caused error: ")[2].startswith("WRONGTYPE")


def required(answers: list[Any]) -> list[Any]:
    """The answers of a pipeline that was run with `raise_on_error=False`.

    Raises:
        RedisError: One of them is an error.
    """
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def number_of(value: bytes | str) -> float | None:
    """A finite number; None where it is not one."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def text_of(value: bytes | str) -> str | None:
    """A text; None where it is not UTF-8."""
    try:
        return value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError:
        return None
