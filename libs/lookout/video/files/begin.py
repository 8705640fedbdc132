"""The wall-clock time at which a recording begins, if its container states a plausible one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

#: metadata keys, best first: Apple's key, which has the local UTC offset and survives when a phone exports a
#: recording; and the file's date in UTC
_TAGS: Final = ("com.apple.quicktime.creationdate", "creation_time")
_EARLIEST: Final = datetime(1990, 1, 1, tzinfo=UTC)
"""Earlier times are ignored, because a clock that was never set starts in 1904, 1970 or 1980."""
_UNSET: Final = datetime(2001, 1, 1, tzinfo=UTC)
"""Zero of Matroska's clock, which means that the file's date was never set."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE_OFFSETS: Final = 24 * 60
"""Bound on offsets from UTC, in minutes: less than a day."""


def stated_begin(tags: Mapping[str, str], now: datetime) -> datetime | None:
    """Return when the recording begins, with its UTC offset, as the container states it; None if the
    container states no plausible time.

    Args:
        tags: Metadata of the container and of the stream.
        now: The latest plausible time.
    """
    for tag in _TAGS:
        try:
            begin = datetime.fromisoformat(tags.get(tag, ""))
        except ValueError:
            continue
        if begin.tzinfo is None:
            if tag == _TAGS[0]:  # a local time whose offset is unknown
                continue
            begin = begin.replace(tzinfo=UTC)
        if is_plausible(begin, now):
            return begin_of_numbers(*begin_numbers(begin))
    return None


def is_plausible(begin: datetime, now: datetime) -> bool:
    """Whether a recording can have begun at a time, that is, the time is neither a clock's default nor in the
    future.
    """
    return _EARLIEST <= begin <= now and begin != _UNSET


def begin_numbers(begin: datetime) -> tuple[int, int]:
    """Return a moment as microseconds since 1970, and its offset from UTC in minutes."""
    offset = begin.utcoffset() or timedelta()
    return (begin - _EPOCH) // timedelta(microseconds=1), offset // timedelta(minutes=1)


def begin_of_numbers(unix_us: int, offset_min: int) -> datetime:
    """Return the moment for two numbers from `begin_numbers`.

    Args:
        unix_us: Microseconds since 1970, less than 2^53.
        offset_min: Minutes from UTC, less than a day.
    """
    zone = timezone(timedelta(minutes=offset_min)) if offset_min else UTC
    return (_EPOCH + timedelta(microseconds=unix_us)).astimezone(zone)
