"""Reads the time at which a recording begins from a message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from lookout.recordings.analysis.begin import given_begin
from lookout.recordings.analysis.settings import AnalysisError
from lookout.wire.begins import Begun


def begin_of(message: Begun) -> datetime | None:
    """Return when a recording begins, in the time zone offset of the message; None if the message states no
    valid time."""
    if not message.HasField("begins"):
        return None
    try:
        moment = given_begin(message.begins.ToDatetime(UTC))
    except AnalysisError:
        return None
    offset = message.begins_offset_min
    return moment.astimezone(timezone(timedelta(minutes=offset))) if offset else moment
