"""Compares a canary's verdicts with the fleet's, window by window, and decides whether to promote the canary.

A canary runs beside the fleet with another model or policy, and decides the same windows of some cameras. The
two verdicts about a watch's window have the same id, so pairs are found by id and not by time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire.message_json import enum_name

#: maximum number of disagreements kept for inspection
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
        windows: Minimum number of the fleet's answers to compare before a decision.
        differ: Maximum share of the pairs in which one says yes and the other no.
        unanswered: Maximum share of the windows answered by the fleet that the canary did not answer.
    """

    windows: int = 1000
    differ: float = 0.02
    unanswered: float = 0.01


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A window to which the fleet and the canary gave opposite answers. `fleet` and `canary` are their
    p(yes)."""

    camera: str
    watch: str
    end_ms: int
    fleet: float
    canary: float

    def as_json(self) -> dict[str, Any]:
        """Return the disagreement for JSON."""
        return {
            "camera": self.camera,
            "watch": self.watch,
            "end_ms": self.end_ms,
            "fleet": round(self.fleet, 4),
            "canary": round(self.canary, 4),
        }


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The compared part of a verdict. `kind` is the name of its outcome; `p_yes` is None if the outcome is
    not an answer."""

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
        """Whether both windows have the same samples. A canary's first windows are shorter, as after a
        restart."""
        return (self.start_us, self.end_us, self.coverage) == (other.start_us, other.end_us, other.coverage)


#: camera, epoch, watch and version of the watch
_Series = tuple[str, int, str, int]


@dataclass(slots=True)
class CanaryComparison:
    """Compares verdicts: add all of the canary's first, then those of the fleet.

    Attributes:
        pairs: Number of windows that both answered from the same samples.
        differ: Number of pairs in which one says yes and the other no.
        partial: Number of windows that both answered, but from different samples.
        unanswered: Number of windows that only the fleet answered, by the canary's outcome.
        gained: Number of windows that only the canary answered.
        neither: Number of windows that neither answered.
        missing: Number of the fleet's verdicts, between the canary's first and last window, for which the
            canary has no verdict.
        doubled: Number of repeated verdicts, from the fleet or the canary.
        largest: Largest difference of p(yes) among the pairs.
        models: Digests of the models that gave the fleet's verdicts, and of those that gave the canary's.
        cameras: Cameras of the canary's verdicts.
        disagreements: The first `SHOWN` windows counted in `differ`.
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
        """Add a verdict of the canary."""
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
        """Add a verdict of the fleet. It is ignored if its window comes before the canary's first or after
        the canary's last."""
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
        """Number of the canary's verdicts without one from the fleet, which has not decided yet, or whose
        verdict is past its retention."""
        return len(self._waiting)

    @property
    def differ_share(self) -> float:
        """Share of the pairs in which one says yes and the other no."""
        return self.differ / max(1, self.pairs)

    @property
    def lost(self) -> int:
        """Number of windows that the canary should have answered but did not: `unanswered` and `missing`."""
        return sum(self.unanswered.values()) + self.missing

    @property
    def lost_share(self) -> float:
        """`lost` as a share of all windows that the canary should have answered."""
        return self.lost / max(1, self.lost + self.pairs + self.partial)

    def decide(self, rule: CanaryRule) -> tuple[Decision, str]:
        """Return what to do with the canary, and the reason as a sentence."""
        compared = self.pairs + self.lost
        if compared < rule.windows:
            return Decision.WAIT, f"only {compared} windows were compared; the rule requires {rule.windows}"
        if self.lost_share > rule.unanswered:
            kinds = Counter(self.unanswered) + Counter(missing=self.missing)
            named = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            why = (
                f"the canary did not answer {self.lost_share:.2%} of the windows that the fleet answered "
                f"({named})"
            )
            return Decision.ROLL_BACK, why
        why = f"yes and no differ in {self.differ_share:.2%} of {self.pairs} windows"
        return (Decision.ROLL_BACK if self.differ_share > rule.differ else Decision.PROMOTE), why

    def as_json(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
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
