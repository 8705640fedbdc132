"""Numbers that callers give, checked where they enter."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable

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
