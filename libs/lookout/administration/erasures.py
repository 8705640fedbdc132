"""Erasures as they are asked for."""

from __future__ import annotations

import time
from collections.abc import Callable

from lookout.errors import LookoutError
from lookout.past.erasures.records import new_erasure
from lookout.text import clean
from lookout.v1.erasures_pb2 import Erasure


class ErasureError(LookoutError):
    """An erasure that cannot be asked for; the text says why."""


def erasure_requests(
    camera: str,
    begin_us: int | None,
    end_us: int | None,
    by: str,
    newest_epoch: Callable[[str], tuple[int, int] | None],
) -> list[Erasure]:
    """What is asked for: the range, and after it footage of a clock that is ahead, where there is no end.

    Such footage is a range of its own: one up to its end would also hide what comes until then, once the
    clock is right.

    Args:
        camera: Whose.
        begin_us: Wall time, Unix microseconds; None: from the beginning.
        end_us: Wall time; None: up to now.
        by: Who asks.
        newest_epoch: The wall time of a camera's newest epoch, Unix microseconds, or None if it has no epoch.

    Raises:
        ErasureError: The range is empty, or the camera a pattern.
    """
    now_us = int(time.time() * 1e6)
    first = new_erasure(camera, begin_us, end_us, now_us, by[:200])
    if first.begin_us >= first.end_us:
        raise ErasureError("the range to erase is empty: its beginning must be before now")
    newest = newest_epoch(camera)
    if newest is None and "*" in camera:
        raise ErasureError(f"{clean(camera)!r} is no camera's id; patterns are not erased")
    ahead = None if end_us is not None else newest
    if ahead is None or ahead[1] <= now_us:
        return [first]
    return [first, new_erasure(camera, max(ahead[0], now_us + 1), ahead[1], now_us, by[:200])]
