"""Parameters that several routes share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query

from lookout.services.gateway.problems import ProblemError

CameraGlob = Annotated[str | None, Query(max_length=200, description="id or glob")]
Moment = Annotated[
    str | None, Query(max_length=40, description="RFC 3339, such as 2026-01-30T21:14:08Z", examples=[None])
]


def parse_ms(name: str, text: str | None) -> int | None:
    """Parse a time to Unix milliseconds; without an offset, the time is UTC. None: no text was given.

    Raises:
        ProblemError: The text is not a time in the years 1970 to 9999.
    """
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is not None:
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        try:
            seconds = moment.timestamp()
        except (ValueError, OverflowError):
            seconds = -1.0
        if seconds >= 0:
            return round(seconds * 1000)
    raise ProblemError(400, f"{name}: {text[:40]!r} is not a time such as 2026-01-30T21:14:08Z")
