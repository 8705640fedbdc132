"""Verdicts become incidents: threshold, k of n, cooldown, schedule, zones, coverage. Pure, in event time."""

from lookout.rules.coverage import CoverageInterval, coverage_intervals
from lookout.rules.incidents import remove, step
from lookout.rules.types import (
    Activity,
    Coverage,
    EventKind,
    Incident,
    IncidentEvent,
    Outcome,
    Rule,
    RuleError,
    ScheduleEntry,
    WatchState,
    WatchVerdict,
    Zone,
)
from lookout.rules.watches import check_watch, next_version, read_watch, watch_fault

__all__ = [
    "Activity",
    "Coverage",
    "CoverageInterval",
    "EventKind",
    "Incident",
    "IncidentEvent",
    "Outcome",
    "Rule",
    "RuleError",
    "ScheduleEntry",
    "WatchState",
    "WatchVerdict",
    "Zone",
    "check_watch",
    "coverage_intervals",
    "next_version",
    "read_watch",
    "remove",
    "step",
    "watch_fault",
]
