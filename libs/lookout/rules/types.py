"""Plain data of the rules: verdicts in, incident events out."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import time
from enum import StrEnum
from numbers import Integral
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lookout.errors import LookoutError
from lookout.values import check_finite
from lookout.wire.limits import COOLDOWN_S, LAST_ANSWERS


class RuleError(LookoutError, ValueError):
    """The rule is invalid; the message names the field and says why."""


class Outcome(StrEnum):
    """The outcome of a window."""

    ANSWERED = "answered"
    IDLE = "idle"
    GAP = "gap"
    SKIPPED = "skipped"
    DEGRADED = "degraded"
    GATED = "gated"

    @property
    def watched(self) -> bool:
        """Whether the camera was analysed. In a gated window it was, because the gate was evaluated instead
        of the question."""
        return self in (Outcome.ANSWERED, Outcome.IDLE, Outcome.GATED)


class EventKind(StrEnum):
    """What happened to an incident."""

    OPENED = "opened"
    UPDATED = "updated"
    CLOSED = "closed"


def is_time_zone(name: str) -> bool:
    """Whether this is the IANA name of a time zone, such as Europe/Berlin."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # OSError: "America" and "Etc" are folders in the database, or the name may be too long for a file.
        return False
    return True


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """A weekly span of time in `time_zone`. If `end` is not after `start`, the span runs past midnight."""

    start: time
    end: time
    weekdays: frozenset[int] = frozenset(range(1, 8))  # ISO: 1 Monday ... 7 Sunday
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        if not is_time_zone(self.time_zone):
            raise RuleError(f"schedule: {self.time_zone!r} is not an IANA time zone such as Europe/Berlin")
        if not self.weekdays <= set(range(1, 8)) or not self.weekdays:
            raise RuleError(f"schedule: weekdays must be 1 (Monday) to 7, not {sorted(self.weekdays)}")


@dataclass(frozen=True, slots=True)
class Zone:
    """A polygon in relative picture coordinates, x to the right and y down, both 0 to 1."""

    points: tuple[tuple[float, float], ...]
    name: str = ""

    def __post_init__(self) -> None:
        if len(self.points) < 3:
            raise RuleError(f"zone {self.name!r}: a polygon needs at least 3 points, not {len(self.points)}")


@dataclass(frozen=True, slots=True)
class Rule:
    """When answers open and close an incident.

    An answer is yes if its p_yes is at least `threshold`, and no if its p_yes is below `clear_threshold`. In
    between, the answer is yes only while an incident is open. An incident opens at a yes if at least `k` of
    the last `n` answers are yes, and if all answers of the last `hold_ms` milliseconds are yes. An incident
    closes when fewer than `k` of the last `n` answers are yes.
    """

    threshold: float = 0.5
    clear_threshold: float | None = None
    k: int = 1
    n: int = 1
    cooldown_ms: int = 0
    schedule: tuple[ScheduleEntry, ...] = ()
    zones: tuple[Zone, ...] = ()
    hold_ms: int = 0

    def __post_init__(self) -> None:
        for name in ("threshold", "clear"):
            check_finite(name, getattr(self, name), RuleError)
        if any(isinstance(count, bool) or not isinstance(count, Integral) for count in (self.k, self.n)):
            raise RuleError(f"k and n must be whole numbers, not {self.k!r:.40} and {self.n!r:.40}")
        if not 0 < self.threshold <= 1:
            raise RuleError(f"threshold must be above 0 and at most 1, not {self.threshold}")
        if not 0 <= self.clear <= self.threshold:
            raise RuleError(f"clear_threshold must be from 0 to {self.threshold}, not {self.clear_threshold}")
        if not 1 <= self.k <= self.n <= LAST_ANSWERS:
            raise RuleError(f"k of n needs 1 <= k <= n <= {LAST_ANSWERS}, not {self.k} of {self.n}")
        if not 0 <= self.cooldown_ms <= COOLDOWN_S * 1000:
            raise RuleError(f"cooldown must be from 0 to {COOLDOWN_S} s, not {self.cooldown_ms / 1000:g} s")

    @property
    def clear(self) -> float:
        """The p_yes below which an answer is no."""
        return self.threshold if self.clear_threshold is None else self.clear_threshold


@dataclass(frozen=True, slots=True)
class Activity:
    """Where the picture changed: `cells` are the row-major indices of the changed cells in a grid of `rows` x
    `cols` cells."""

    rows: int
    cols: int
    cells: frozenset[int]


@dataclass(frozen=True, slots=True)
class WatchVerdict:
    """One committed outcome of a watch's window. Times are the window's, in Unix milliseconds.

    `evidence` is opaque to the rules: serialised references to frames, best first.
    """

    camera: str
    epoch: int
    window: int
    watch: str
    version: int
    outcome: Outcome
    p_yes: float
    start_ms: int
    end_ms: int
    rule: Rule
    activity: Activity | None = None
    evidence: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Coverage:
    """A watch's time in milliseconds, by outcome: it tells time in which nothing happened from time in which
    the camera was not analysed."""

    answered: int = 0
    idle: int = 0
    gap: int = 0
    skipped: int = 0
    degraded: int = 0
    gated: int = 0


@dataclass(frozen=True, slots=True)
class Incident:
    """An open incident.

    `opened_ms` is the begin of the window that opened the incident, `raised_ms` that window's end; 0:
    unknown. `evidence` has (p_yes, frames) of the strongest windows, strongest first. `coverage` counts the
    time since the incident opened.
    """

    id: str
    opened_ms: int
    peak: float
    score: float
    windows: int
    reported_peak: float
    evidence: tuple[tuple[float, tuple[bytes, ...]], ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    raised_ms: int = 0


@dataclass(frozen=True, slots=True)
class WatchState:
    """The state of one watch on one camera.

    `window` is the newest window seen in this epoch; -1: none. `recent` says for each of the last answers
    whether it was yes, newest last. `held_since_ms` is the end of the first window in the current run of yes
    answers; 0: the newest answer was no, or the run was interrupted.
    """

    version: int
    epoch: int
    window: int = -1
    recent: tuple[bool, ...] = ()
    newest_ms: int = 0
    cooldown_until_ms: int = 0
    incident: Incident | None = None
    held_since_ms: int = 0

    @property
    def quiet(self) -> bool:
        """Whether a new state would behave the same, because there is no incident, no recent yes and no
        cooldown."""
        return self.incident is None and not any(self.recent) and self.cooldown_until_ms <= self.newest_ms


@dataclass(frozen=True, slots=True)
class IncidentEvent:
    """One event in an incident's life; `reason` says why the incident closed."""

    kind: EventKind
    incident: Incident
    version: int
    epoch: int
    end_ms: int
    reason: str = ""
