"""Rules that turn verdicts into incidents: threshold, k of n, cooldown, schedule, zones, coverage. They are
pure functions in event time."""

from lookout.rules.coverage import (
    CoverageInterval as CoverageInterval,
    coverage_intervals as coverage_intervals,
)
from lookout.rules.incidents import (
    FORGOTTEN as FORGOTTEN,
    best_frames as best_frames,
    remove as remove,
    step as step,
)
from lookout.rules.standing import (
    asks_for_outages as asks_for_outages,
    is_watched as is_watched,
    offline_watch as offline_watch,
)
from lookout.rules.types import (
    Activity as Activity,
    Coverage as Coverage,
    EventKind as EventKind,
    Incident as Incident,
    IncidentEvent as IncidentEvent,
    Outcome as Outcome,
    Rule as Rule,
    RuleError as RuleError,
    ScheduleEntry as ScheduleEntry,
    WatchState as WatchState,
    WatchVerdict as WatchVerdict,
    Zone as Zone,
)
from lookout.rules.watches import (
    ASKED as ASKED,
    NO_SECOND_MODEL as NO_SECOND_MODEL,
    asked_question as asked_question,
    asks_strides as asks_strides,
    check_watch as check_watch,
    covers as covers,
    next_version as next_version,
    read_watch as read_watch,
    second_model_fault as second_model_fault,
    watch_fault as watch_fault,
)
