"""A canary's verdicts next to those of the fleet, window by window, and what follows from them.

A canary decides the windows that the fleet decides, of some cameras, with another model or policy. The same
window of the same watch has the same id in both topics, so pairs are found without a clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire.message_json import enum_name

#: windows on which both disagree that are kept to be looked at
SHOWN: Final = 20


class Decision(Enum):
    """What to do with a canary."""

    PROMOTE = "promote"
    ROLL_BACK = "roll back"
    WAIT = "wait"


@dataclass(frozen=True)
class CanaryRule:
    """When a canary is promoted, and when it is rolled back.

    Attributes:
        windows: So many pairs are compared before anything is decided.
        differ: Share of the pairs in which one says yes and the other no, at most.
        unanswered: Share of the fleet's answers to which the canary has none, at most.
    """

    windows: int = 1000
    differ: float = 0.02
    unanswered: float = 0.01


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A window to which one says yes and the other no."""

    camera: str
    watch: str
    end_ms: int
    fleet: float
    canary: float

    def as_json(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "camera": self.camera,
            "watch": self.watch,
            "end_ms": self.end_ms,
            "fleet": round(self.fleet, 4),
            "canary": round(self.canary, 4),
        }


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What is compared of a verdict. `p_yes` None: it is no answer, and `kind` says what."""

    kind: str
    p_yes: float | None
    start_us: int
    end_us: int
    coverage: float

    @classmethod
    def of(cls, verdict: Verdict) -> _Outcome:
        answered = verdict.outcome == Verdict.OUTCOME_ANSWERED
        return cls(
            enum_name("Outcome", Verdict.Outcome.Name(verdict.outcome)),
            verdict.p_yes if answered else None,
            round(1e6 * verdict.stream_start_s),
            round(1e6 * verdict.stream_end_s),
            round(verdict.coverage, 6),
        )

    def sees(self, other: _Outcome) -> bool:
        """Whether both saw the same time: a canary's first windows are shorter, as after a restart."""
        return (self.start_us, self.end_us, self.coverage) == (other.start_us, other.end_us, other.coverage)


#: windows of one camera, epoch and watch
_Series = tuple[str, int, str, int]


@dataclass(slots=True)
class CanaryComparison:
    """Compares verdicts. First all of the canary's, then those of the fleet.

    Attributes:
        pairs: Windows that both answered, over the same time.
        differ: Those of them to which one says yes and the other no.
        partial: Windows that both answered, of which one saw less.
        unanswered: Windows that only the fleet answered, by what the canary says.
        gained: Windows that only the canary answered.
        neither: Windows that neither answered.
        missing: Verdicts of the fleet, between the canary's first and last window, that it has none for.
        doubled: Verdicts of either that came twice.
        largest: Largest difference of p(yes) over the pairs.
        models: Digests of models: of the fleet's verdicts, then of the canary's.
        disagreements: The first windows of `differ`.
    """

    pairs: int = 0
    differ: int = 0
    partial: int = 0
    unanswered: Counter[str] = field(default_factory=Counter)
    gained: int = 0
    neither: int = 0
    missing: int = 0
    doubled: int = 0
    largest: float = 0.0
    models: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    cameras: set[str] = field(default_factory=set)
    disagreements: list[Disagreement] = field(default_factory=list)
    _sum: float = 0.0
    _waiting: dict[str, _Outcome] = field(default_factory=dict)
    _paired: set[str] = field(default_factory=set)
    _spans: dict[_Series, tuple[int, int]] = field(default_factory=dict)

    def add_canary(self, verdict: Verdict) -> None:
        """Take a verdict of the canary."""
        if verdict.id in self._waiting:
            self.doubled += 1
            return
        self._waiting[verdict.id] = _Outcome.of(verdict)
        self.cameras.add(verdict.camera)
        self.models[1].add(verdict.model_digest)
        series = _series(verdict)
        first, last = self._spans.get(series, (verdict.window, verdict.window))
        self._spans[series] = min(first, verdict.window), max(last, verdict.window)

    def add_fleet(self, verdict: Verdict) -> None:
        """Take a verdict of the fleet; one of a window that the canary was not given is ignored."""
        first, last = self._spans.get(_series(verdict), (0, -1))
        if not first <= verdict.window <= last:
            return
        if verdict.id in self._paired:
            self.doubled += 1
            return
        self._paired.add(verdict.id)
        self.models[0].add(verdict.model_digest)
        canary = self._waiting.pop(verdict.id, None)
        if canary is None:
            self.missing += 1
            return
        self._compare(verdict, _Outcome.of(verdict), canary)

    def _compare(self, verdict: Verdict, fleet: _Outcome, canary: _Outcome) -> None:
        if fleet.p_yes is None or canary.p_yes is None:
            if fleet.p_yes is not None:
                self.unanswered[canary.kind] += 1
            elif canary.p_yes is not None:
                self.gained += 1
            else:
                self.neither += 1
            return
        if not fleet.sees(canary):
            self.partial += 1
            return
        self.pairs += 1
        difference = abs(fleet.p_yes - canary.p_yes)
        self._sum += difference
        self.largest = max(self.largest, difference)
        threshold = verdict.rule.threshold
        if (fleet.p_yes >= threshold) != (canary.p_yes >= threshold):
            self.differ += 1
            if len(self.disagreements) < SHOWN:
                place = (verdict.camera, verdict.watch, verdict.end.ToMilliseconds())
                self.disagreements.append(Disagreement(*place, fleet.p_yes, canary.p_yes))

    @property
    def alone(self) -> int:
        """Verdicts of the canary whose window the fleet has not decided yet, or no longer has."""
        return len(self._waiting)

    @property
    def differ_share(self) -> float:
        """Share of the pairs in which one says yes and the other no."""
        return self.differ / max(1, self.pairs)

    @property
    def lost(self) -> int:
        """Answers of the fleet to which the canary has none."""
        return sum(self.unanswered.values()) + self.missing

    @property
    def lost_share(self) -> float:
        """Their share."""
        return self.lost / max(1, self.lost + self.pairs + self.partial)

    def decide(self, rule: CanaryRule) -> tuple[Decision, str]:
        """What to do, and why."""
        compared = self.pairs + self.lost
        if compared < rule.windows:
            return Decision.WAIT, f"{compared} windows are compared, the rule asks for {rule.windows}"
        if self.lost_share > rule.unanswered:
            kinds = Counter(self.unanswered) + Counter(missing=self.missing)
            named = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            why = f"{self.lost_share:.2%} of the fleet's answers have none of the canary ({named})"
            return Decision.ROLL_BACK, why
        why = f"yes and no differ in {self.differ_share:.2%} of {self.pairs} windows"
        return (Decision.ROLL_BACK if self.differ_share > rule.differ else Decision.PROMOTE), why

    def as_json(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "cameras": len(self.cameras),
            "pairs": self.pairs,
            "differ": self.differ,
            "mean_difference": round(self._sum / max(1, self.pairs), 6),
            "largest_difference": round(self.largest, 6),
            "partial": self.partial,
            "unanswered": dict(sorted(self.unanswered.items())),
            "gained": self.gained,
            "neither": self.neither,
            "missing": self.missing,
            "doubled": self.doubled,
            "alone": self.alone,
            "fleet_models": sorted(self.models[0]),
            "canary_models": sorted(self.models[1]),
            "disagreements": [entry.as_json() for entry in self.disagreements],
        }


def _series(verdict: Verdict) -> _Series:
    return verdict.camera, verdict.epoch, verdict.watch, verdict.watch_version
