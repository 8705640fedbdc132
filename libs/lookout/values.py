"""Checks of numbers and times that callers give."""

from __future__ import annotations

import bisect
import math
import numbers
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo

from lookout.errors import LookoutError


def check_finite(name: str, value: float, error: Callable[[str], LookoutError]) -> float:
    """Check that a caller's number is finite, and return it as a float.

    An integer with thousands of digits passes type checks for floats, but cannot be converted.

    Args:
        name: The setting's name, for the message.
        value: The number.
        error: The exception to raise.

    Raises:
        LookoutError: `error`: the value is not a number, or not finite.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise error(f"{name} must be a number, not {value!r:.60}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise error(f"{name}={number:g} must be a finite number")
    return number


def check_whole(name: str, value: int, least: int, limit: int, error: Callable[[str], LookoutError]) -> int:
    """Check that a caller's number is whole and within bounds; 1.5 and True are rejected.

    Args:
        name: The setting's name, for the message.
        value: The number.
        least: The smallest allowed number.
        limit: The largest allowed number.
        error: The exception to raise.

    Raises:
        LookoutError: `error`: the value is not a whole number, or out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise error(f"{name} must be a whole number, not {value!r:.60}")
    if not least <= value <= limit:
        shown = f", not {value}" if abs(value) < 1 << 64 else ""  # Python does not print 5 000 digits
        raise error(f"{name} must be from {least} to {limit}{shown}")
    return int(value)


def moment_of(name: str, value: datetime | str, error: Callable[[str], LookoutError]) -> datetime | None:
    """Return the moment that a caller gives; without an offset, it is local time.

    Args:
        name: The value's name in messages, with the value itself.
        value: The moment, or its text in ISO 8601. For an ambiguous time, `fold=1` selects the second moment.
        error: The exception to raise.

    Returns:
        The moment with its offset; None if the value is not a time, or is outside the calendar.

    Raises:
        LookoutError: `error`: the time is ambiguous or does not exist, because clocks are changed.
    """
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        if not isinstance(moment, datetime):
            return None
        first_s, second_s = (int(moment.replace(fold=fold, microsecond=0).timestamp()) for fold in (0, 1))
        aware = moment if moment.tzinfo is not None else moment.astimezone()
    except (ValueError, OverflowError, OSError):
        return None
    # PEP 495: for a time that occurs twice, fold 0 is the earlier moment; for a skipped time, the later one.
    if first_s < second_s and not moment.fold:
        first, second = (
            _at(seconds, moment.tzinfo).replace(microsecond=moment.microsecond).isoformat()
            for seconds in (first_s, second_s)
        )
        raise error(f"{name} occurs twice, because clocks are set back: write {first} or {second}")
    if first_s > second_s:
        raise error(f"{name} does not exist: {_gap(second_s, first_s, moment.tzinfo)}")
    return aware


def _at(unix_s: int, zone: tzinfo | None) -> datetime:
    """Return a moment with its offset, in a zone or in local time."""
    return datetime.fromtimestamp(unix_s, zone) if zone else datetime.fromtimestamp(unix_s).astimezone()


def _gap(before_s: int, after_s: int, zone: tzinfo | None) -> str:
    """Describe how clocks are set forward between two moments."""
    offset = _at(after_s, zone).utcoffset()
    seconds = range(before_s, after_s)
    change_s = before_s + bisect.bisect_left(
        seconds, True, key=lambda second: _at(second, zone).utcoffset() == offset
    )
    last, first = _at(change_s - 1, zone), _at(change_s, zone)
    end = last + timedelta(seconds=1)  # in the offset before the change
    return (
        f"clocks are set forward from {end.isoformat()} to {first.isoformat()}; write a time with an offset"
    )
