"""Weekly schedules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from lookout.rules.types import ScheduleEntry


def in_schedule(schedule: Sequence[ScheduleEntry], moment_ms: int) -> bool:
    """Whether Unix time `moment_ms` is in one of the spans; an empty schedule always applies."""
    return not schedule or any(_in_span(span, moment_ms) for span in schedule)


def _in_span(span: ScheduleEntry, moment_ms: int) -> bool:
    moment = datetime.fromtimestamp(moment_ms / 1000, UTC).astimezone(ZoneInfo(span.time_zone))
    clock = moment.time()
    if span.start < span.end:
        return moment.isoweekday() in span.weekdays and span.start <= clock < span.end
    # The span runs past midnight; its part after midnight belongs to the previous weekday.
    if clock >= span.start:
        return moment.isoweekday() in span.weekdays
    return clock < span.end and (moment - timedelta(days=1)).isoweekday() in span.weekdays
