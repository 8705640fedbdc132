"""Builds requests to erase footage."""

from __future__ import annotations

import time
from collections.abc import Callable

from lookout.errors import LookoutError
from lookout.past.erasures.records import new_erasure
from lookout.text import clean
from lookout.v1.erasures_pb2 import Erasure


class ErasureError(LookoutError):
    """The request to erase is invalid; the text says why."""


def erasure_requests(
    camera: str,
    begin_us: int | None,
    end_us: int | None,
    by: str,
    newest_epoch: Callable[[str], tuple[int, int] | None],
) -> list[Erasure]:
    """Return the records of a request: one for its range and, if the range has no end, one for footage filmed
    while the camera's clock was ahead. That footage gets a separate range: a single range up to its end would
    also hide everything filmed until then, once the clock is right.

    Args:
        camera: The camera's id.
        begin_us: Wall time, Unix microseconds; None: from the beginning.
        end_us: Wall time, Unix microseconds; None: up to now.
        by: Name of the person who makes the request.
        newest_epoch: Returns begin and end of a camera's newest epoch in wall time, Unix microseconds; None
            if it has no epoch.

    Raises:
        ErasureError: The range is empty, or the camera is a pattern.
    """
    now_us = int(time.time() * 1e6)
    first = new_erasure(camera, begin_us, end_us, now_us, by[:200])
    if first.begin_us >= first.end_us:
        raise ErasureError("the range to erase is empty: its beginning must be before now")
    newest = newest_epoch(camera)
    if newest is None and "*" in camera:
        raise ErasureError(f"{clean(camera)!r} is not a camera's id: give one id, not a pattern")
    ahead = None if end_us is not None else newest
    if ahead is None or ahead[1] <= now_us:
        return [first]
    return [first, new_erasure(camera, max(ahead[0], now_us + 1), ahead[1], now_us, by[:200])]
