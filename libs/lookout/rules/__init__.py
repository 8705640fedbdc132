"""Verdicts become incidents: threshold, k of n, cooldown, schedule, zones, coverage. Pure, in event time."""

from lookout.rules.incidents import remove, step
from lookout.rules.ledger import Interval, ledger
from lookout.rules.types import (
    Activity,
    Answer,
    Coverage,
    Incident,
    IncidentEvent,
    Kind,
    Outcome,
    Rule,
    RuleError,
    Span,
    WatchState,
    Zone,
)

__all__ = [
    "Activity",
    "Answer",
    "Coverage",
    "Incident",
    "IncidentEvent",
    "Interval",
    "Kind",
    "Outcome",
    "Rule",
    "RuleError",
    "Span",
    "WatchState",
    "Zone",
    "ledger",
    "remove",
    "step",
]
