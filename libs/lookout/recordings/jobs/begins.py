"""Reads from a message when a recording begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from lookout.recordings.analysis.begin import given_begin
from lookout.recordings.analysis.settings import AnalysisError
from lookout.wire.begins import Begun


def begin_of(message: Begun) -> datetime | None:
    """Return when a recording begins, at the message's offset; None if the message states no time, or an
    invalid one."""
    if not message.HasField("begins"):
        return None
    try:
        moment = given_begin(message.begins.ToDatetime(UTC))
    except AnalysisError:
        return None
    offset = message.begins_offset_min
    return moment.astimezone(timezone(timedelta(minutes=offset))) if offset else moment
