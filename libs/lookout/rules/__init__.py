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
    Verdict,
    WatchState,
    Zone,
)

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
    "Verdict",
    "WatchState",
    "Zone",
    "coverage_intervals",
    "remove",
    "step",
]
