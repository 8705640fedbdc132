"""When a recording begins by the clock: what its container says, where that can be true."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

#: what the containers call it, the better one first. Apple's has the offset of the place, and stays when a
#: phone exports what it recorded; the other is that of the file, in UTC
_TAGS: Final = ("com.apple.quicktime.creationdate", "creation_time")
_EARLIEST: Final = datetime(1990, 1, 1, tzinfo=UTC)
"""Clocks that were never set count from 1904, 1970 or 1980."""
_UNSET: Final = datetime(2001, 1, 1, tzinfo=UTC)
"""Matroska counts from then: its 0."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE_OFFSETS: Final = 24 * 60
"""Offsets from UTC are less than a day."""


def stated_begin(tags: Mapping[str, str], now: datetime) -> datetime | None:
    """When a container says that its recording begins, with the offset it names; None: it says nothing that
    can be true.

    Args:
        tags: The container's and the stream's.
        now: Nothing was recorded later.
    """
    for tag in _TAGS:
        try:
            begin = datetime.fromisoformat(tags.get(tag, ""))
        except ValueError:
            continue
        if begin.tzinfo is None:
            if tag == _TAGS[0]:  # of what place it is the time, nobody knows
                continue
            begin = begin.replace(tzinfo=UTC)
        if is_plausible(begin, now):
            return begin_of_numbers(*begin_numbers(begin))
    return None


def is_plausible(begin: datetime, now: datetime) -> bool:
    """Whether a recording can have begun then: not at the zero of a clock, nor in the future."""
    return _EARLIEST <= begin <= now and begin != _UNSET


def begin_numbers(begin: datetime) -> tuple[int, int]:
    """A moment as microseconds since 1970 and its offset from UTC in minutes."""
    offset = begin.utcoffset() or timedelta()
    return (begin - _EPOCH) // timedelta(microseconds=1), offset // timedelta(minutes=1)


def begin_of_numbers(unix_us: int, offset_min: int) -> datetime:
    """The inverse of `begin_numbers`.

    Args:
        unix_us: Microseconds since 1970, less than 2^53.
        offset_min: Minutes from UTC, less than a day.
    """
    zone = timezone(timedelta(minutes=offset_min)) if offset_min else UTC
    return (_EPOCH + timedelta(microseconds=unix_us)).astimezone(zone)
