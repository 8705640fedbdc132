"""The result of a back-test: incidents, how much time was watched, and costs."""

from __future__ import annotations

import resource
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

from lookout import rules
from lookout.past.backtests.labels import LabelScores
from lookout.rules import EventKind, Outcome, Rule, WatchVerdict, best_frames, messages
from lookout.rules.zones import inside_any
from lookout.v1.labels_pb2 import Label
from lookout.v1.recordings_pb2 import BacktestCost, LabelScore
from lookout.v1.verdicts_pb2 import Verdict

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class PastOutcome:
    """A window's outcome, for a timeline.

    Attributes:
        start_ms: When the window begins, on the same clock as its camera's incidents
            (`PastIncident.opened_ms`).
        end_ms: When the window ends.
        outcome: The window's outcome.
        p_yes: The window's p(yes); 0 if it has no answer.
    """

    start_ms: int
    end_ms: int
    outcome: Outcome
    p_yes: float


@dataclass(slots=True)
class PastIncident:
    """An incident that a rule would have opened.

    Attributes:
        camera: The camera.
        opened_ms: When its first window begins: Unix milliseconds or, for a file, milliseconds since its
            begin.
        end_ms: When its newest window ends, on the same clock.
        peak: Largest p(yes).
        windows: Number of windows answered yes.
        reason: Why it closed; empty if it is still open at the end.
        evidence: References to the frames that show it, best first.
        raised_ms: When it was raised: the end of the window that raised it.
        score: Highest threshold at which the rule still reports the incident: the k-th largest p(yes) of n
            consecutive answers, in the n answers where it is largest.
    """

    camera: str
    opened_ms: int
    end_ms: int
    peak: float
    windows: int
    reason: str = ""
    evidence: tuple[bytes, ...] = ()
    raised_ms: int = 0
    score: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the incident for JSON."""
        return {
            "camera": self.camera,
            "opened_ms": self.opened_ms,
            "raised_ms": self.raised_ms,
            "end_ms": self.end_ms,
            "peak": round(self.peak, 4),
            "score": round(self.score, 4),
            "windows": self.windows,
            "reason": self.reason,
        }


@dataclass(slots=True)
class Backtest:
    """A back-test, while it runs and afterwards.

    Attributes:
        rule: When answers become an incident.
        given: People's labels of moments, which the answers score.
        incidents: The incidents in the order in which they opened, camera by camera.
        most_incidents: Maximum number of incidents in `incidents`; None: no limit.
        opened: Number of all incidents that opened.
        outcomes: Number of windows by outcome; `expired`: windows whose records are past their retention.
        watched_ms: Time covered by answered windows, in milliseconds, summed over all cameras.
        cameras: Cameras with a window.
        cost: What it cost, and what the answered windows cost a fleet that watches them. For files, `flops`
            has the tower's too; `cpu_s` covers this process and those that it started.
        unread: Files that could not be read to their end, with the reason.
        timeline: Outcomes of windows by camera, for the report page; None: they are not recorded.
    """

    rule: Rule
    given: InitVar[Sequence[Label]] = ()
    incidents: list[PastIncident] = field(default_factory=list)
    most_incidents: int | None = None
    opened: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    watched_ms: int = 0
    cameras: set[str] = field(default_factory=set)
    cost: BacktestCost = field(default_factory=BacktestCost)
    unread: dict[str, str] = field(default_factory=dict)
    timeline: dict[str, list[PastOutcome]] | None = None
    _states: dict[str, rules.WatchState] = field(default_factory=dict)
    _open: dict[str, PastIncident] = field(default_factory=dict)
    _recent: dict[str, deque[float]] = field(default_factory=dict)
    _scores: LabelScores = field(init=False)

    def __post_init__(self, given: Sequence[Label]) -> None:
        self._scores = LabelScores(given, self.rule)

    @property
    def labels(self) -> list[LabelScore]:
        """People's labels with their scores, in the order in which they were given."""
        return self._scores.scores()

    @property
    def incidents_a_camera_day(self) -> float:
        """Incidents opened per camera and 24 hours; 0 if nothing was watched."""
        return self.opened * _DAY_MS / self.watched_ms if self.watched_ms else 0.0

    @property
    def question_share(self) -> float:
        """FLOPs that the question adds, as a share of those for watching the windows without it."""
        return self.cost.flops_question / max(1, self.cost.flops_windows)

    @property
    def live_share(self) -> float:
        """FLOPs of the back-test, as a share of those that watching the windows costs a fleet."""
        return self.cost.flops / max(1, self.cost.flops_windows)

    @property
    def dense_share(self) -> float:
        """FLOPs of the back-test, as a share of those for every window in full and without pruning."""
        return self.cost.flops / max(1, self.cost.flops_dense)

    def take(self, verdict: Verdict, *, expired: bool) -> None:
        """Add the next outcome of a camera, or a window whose records are past their retention."""
        if expired:
            self.outcomes["expired"] += 1
        else:
            self.add(messages.verdict_of(verdict, self.rule))

    def add(self, verdict: WatchVerdict) -> None:
        """Add the next outcome of a camera; the windows of one camera must come in order."""
        camera = verdict.camera
        self.cameras.add(camera)
        self.outcomes[verdict.outcome.value] += 1
        if self.timeline is not None:
            window = PastOutcome(verdict.start_ms, verdict.end_ms, verdict.outcome, verdict.p_yes)
            self.timeline.setdefault(camera, []).append(window)
        before = self._states.get(camera)
        if verdict.outcome in (Outcome.ANSWERED, Outcome.IDLE):
            begun_ms = before.newest_ms if before is not None and before.epoch == verdict.epoch else 0
            if verdict.end_ms < begun_ms:  # the camera's clock was set back
                begun_ms = 0
            self.watched_ms += verdict.end_ms - max(verdict.start_ms, begun_ms)
            self._scores.add(camera, verdict.end_ms, verdict.p_yes)
        self._states[camera], events = rules.step(
            before, verdict, f"{camera}/{verdict.epoch}/{verdict.window}"
        )
        for event in events:
            self._follow(camera, event)
        if self._states[camera] is not before:
            self._rate(verdict)

    def shift(self, camera: str, by_ms: int) -> None:
        """Add `by_ms` to all times of a camera. Call it after all of the camera's windows were added."""
        for incident in self.incidents:
            if incident.camera == camera:
                incident.opened_ms, incident.end_ms = incident.opened_ms + by_ms, incident.end_ms + by_ms
                incident.raised_ms += by_ms
        self._scores.shift(camera, by_ms)
        if self.timeline is not None and camera in self.timeline:
            self.timeline[camera] = [
                replace(window, start_ms=window.start_ms + by_ms, end_ms=window.end_ms + by_ms)
                for window in self.timeline[camera]
            ]

    @contextmanager
    def measured(self, device: str) -> Iterator[None]:
        """Add the CPU and GPU time spent inside the context. Processes started inside must also end inside.

        Args:
            device: The model's device; GPU time is counted unless it is "cpu".
        """
        begun_s, began = processor_s(), time.perf_counter()
        try:
            yield
        finally:
            self.cost.cpu_s += processor_s() - begun_s
            if device != "cpu":
                self.cost.device_s += time.perf_counter() - began

    def _rate(self, verdict: WatchVerdict) -> None:
        """Update the score of the camera's open incident with the newest answers."""
        camera, rule = verdict.camera, self.rule
        recent = self._recent.setdefault(camera, deque(maxlen=rule.n))
        counted = self._states[camera].recent  # the answers that the rule counts
        if counted and verdict.outcome in (Outcome.ANSWERED, Outcome.IDLE):
            inside = not rule.zones or inside_any(rule.zones, verdict.activity)
            recent.append(verdict.p_yes if inside else 0.0)
        while len(recent) > len(counted):
            recent.popleft()
        past = self._open.get(camera)
        if past is not None and len(recent) >= rule.k:
            past.score = max(past.score, sorted(recent)[-rule.k])

    def _follow(self, camera: str, event: rules.IncidentEvent) -> None:
        incident = event.incident
        if event.kind is EventKind.OPENED:
            self._open[camera] = PastIncident(
                camera,
                incident.opened_ms,
                event.end_ms,
                incident.peak,
                1,
                raised_ms=event.end_ms,
                score=self.rule.threshold,
            )
            self.opened += 1
            if self.most_incidents is None or len(self.incidents) < self.most_incidents:
                self.incidents.append(self._open[camera])
        past = self._open[camera]
        past.end_ms, past.peak, past.windows = event.end_ms, incident.peak, incident.windows
        past.evidence = tuple(best_frames(incident))
        if event.kind is EventKind.CLOSED:
            past.reason = event.reason
            del self._open[camera]


def processor_s() -> float:
    """Return the CPU seconds of this process and of its child processes that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
