"""Numbers and times that callers give, checked where they enter."""

from __future__ import annotations

import bisect
import math
import numbers
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo

from lookout.errors import LookoutError


def check_finite(name: str, value: float, error: Callable[[str], LookoutError]) -> float:
    """A caller's number as a float.

    An integer of thousands of digits passes for a float in types, and fails where it first meets one.

    Args:
        name: The setting's name, for the message.
        value: The number.
        error: What to raise.

    Raises:
        LookoutError: `error`: it is not finite, or no number.
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
    """A caller's whole number within bounds; 1.5 frames, or True, are a slip.

    Args:
        name: The setting's name, for the message.
        value: The number.
        least: The smallest that is allowed.
        limit: The largest.
        error: What to raise.

    Raises:
        LookoutError: `error`: it is no whole number, or beyond the bounds.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise error(f"{name} must be a whole number, not {value!r:.60}")
    if not least <= value <= limit:
        shown = f", not {value}" if abs(value) < 1 << 64 else ""  # Python writes no 5 000 digits
        raise error(f"{name} must be {least} to {limit}{shown}")
    return int(value)


def moment_of(name: str, value: datetime | str, error: Callable[[str], LookoutError]) -> datetime | None:
    """The moment that a caller gives; without an offset it is in local time.

    Args:
        name: What names the value in a message, with the value.
        value: The moment, or its text in ISO 8601. A `datetime` with `fold=1` is the second of two.
        error: What to raise.

    Returns:
        The moment with its offset; None: the value is not a time, or lies outside the calendar.

    Raises:
        LookoutError: `error`: clocks there show this time twice, or skip it.
    """
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        if not isinstance(moment, datetime):
            return None
        first_s, second_s = (int(moment.replace(fold=fold, microsecond=0).timestamp()) for fold in (0, 1))
        aware = moment if moment.tzinfo is not None else moment.astimezone()
    except (ValueError, OverflowError, OSError):
        return None
    # PEP 495: of a time that comes twice, fold 0 is the earlier moment; of one that is skipped, the later.
    if first_s < second_s and not moment.fold:
        first, second = (
            _at(seconds, moment.tzinfo).replace(microsecond=moment.microsecond).isoformat()
            for seconds in (first_s, second_s)
        )
        raise error(f"{name} comes twice, because clocks are set back: write {first} or {second}")
    if first_s > second_s:
        raise error(f"{name} does not exist: {_gap(second_s, first_s, moment.tzinfo)}")
    return aware


def _at(unix_s: int, zone: tzinfo | None) -> datetime:
    """A moment with its offset, in a zone or by the local clock."""
    return datetime.fromtimestamp(unix_s, zone) if zone else datetime.fromtimestamp(unix_s).astimezone()


def _gap(before_s: int, after_s: int, zone: tzinfo | None) -> str:
    """How clocks are set forward between two moments, in words."""
    offset = _at(after_s, zone).utcoffset()
    seconds = range(before_s, after_s)
    change_s = before_s + bisect.bisect_left(
        seconds, True, key=lambda second: _at(second, zone).utcoffset() == offset
    )
    last, first = _at(change_s - 1, zone), _at(change_s, zone)
    end = last + timedelta(seconds=1)  # by the clock before the change
    return (
        f"clocks are set forward from {end.isoformat()} to {first.isoformat()}; write a time with an offset"
    )
