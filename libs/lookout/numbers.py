"""Numbers that callers give, checked where they enter."""

from __future__ import annotations

import math
import numbers

from lookout.errors import LookoutError


def check_finite(name: str, value: float, error: type[LookoutError]) -> float:
    """A caller's number as a float.

    An integer of thousands of digits passes for a float in types, and fails where it first meets one.

    Args:
        name: The setting's name, for the message.
        value: The number.
        error: What to raise.

    Raises:
        LookoutError: `error`: it is not finite, or no number.
    """
    if not isinstance(value, numbers.Real):
        raise error(f"{name} must be a number, not {value!r:.60}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise error(f"{name}={number:g} must be a finite number")
    return number
