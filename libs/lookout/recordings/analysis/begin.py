"""Determines when a recording begins: the caller's time or, without one, the time stated in the file."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from lookout.recordings.analysis.settings import AnalysisError
from lookout.text import clean
from lookout.values import moment_of
from lookout.video.files.begin import begin_numbers, begin_of_numbers

GIVEN: Final = "given"
FILE: Final = "file"
"""Where the time at which a recording begins comes from: the caller (`given`) or the file (`file`)."""
#: the limits of a begin, so that every later time in the recording is a valid date too
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


def given_begin(value: datetime | str) -> datetime:
    """Check a moment that a caller gives, and return it with its offset from UTC.

    Args:
        value: The moment, or its text in ISO 8601. Without an offset, it is local time.

    Raises:
        AnalysisError: The value is not a time, is before 1970 or after 2200, or is ambiguous or missing
            because of daylight saving time.
    """
    name = f"begins={clean(str(value), 60)}"
    moment = moment_of(name, value, AnalysisError)
    if moment is None or not _EARLIEST <= moment < _LATEST:
        raise AnalysisError(f"{name}: give a time between 1970 and 2200, such as 2026-05-01T13:30:00+02:00")
    return begin_of_numbers(*begin_numbers(moment))


def begin_and_source(given: datetime | str | None, stated: datetime | None) -> tuple[datetime | None, str]:
    """Return when a recording begins (None: unknown), and where that time comes from: `given`, `file`, or ""
    if the time is unknown.

    Args:
        given: The caller's time; None: the caller gives none.
        stated: The time stated in the file; None: the file states none.

    Raises:
        AnalysisError: The caller's time is invalid.
    """
    if given is not None:
        return given_begin(given), GIVEN
    return stated, "" if stated is None else FILE
