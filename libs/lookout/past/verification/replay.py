"""Checks the verdicts of a camera's epoch, by computing them again from their chains' key windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from lookout.models.engines import Engine, Question
from lookout.models.windows import Planner
from lookout.streams import MAX_DAMAGE, BlockGoneError, ReplayedWindow, WindowRule
from lookout.streams.chains import (
    EpochRecords,
    LoadTokens,
    chain_windows,
    replay_epoch,
    strides_digest,
)
from lookout.streams.chains.gates import PastGate
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch


class Kind(StrEnum):
    """The result of checking a verdict.

    Attributes:
        VERIFIED: Computing it again gave the same p(yes), or its question was rightly not asked because its
            gate was closed.
        UNVERIFIED: Computing it again gave another p(yes), its gate was open, or this model or these settings
            cannot compute it.
        EXPIRED: The records that it needs are past their retention.
        UNANSWERED: It has no answer that could be computed again.
    """

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    EXPIRED = "expired"
    UNANSWERED = "unanswered"


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict and the result of checking it.

    Attributes:
        verdict: The verdict.
        kind: The result.
        p_yes: The p(yes) computed here; None if nothing was computed.
        reason: Why the verdict is not verified; empty if it is.
    """

    verdict: Verdict
    kind: Kind
    p_yes: float | None = None
    reason: str = ""


class Replayer:
    """Checks verdicts by replaying their chains of windows on an engine in this process.

    Args:
        planner: Plans windows with the fleet's settings.
        engine: Computes windows; it has no state of the fleet.
        load: Returns the block of a tokens record; raises LineageBrokenError if its tokens cannot be computed
            again.
        model_digest: Digest of the engine's model.
        plan_digest: Digest of the planner's settings, as verdicts state it.
        tolerance: Maximum difference of p(yes) of a verified verdict.
        watches: Watches with a gate, by id and version.
        max_damage: Maximum share of damaged samples in a window that the fleet asks about.
    """

    def __init__(
        self,
        planner: Planner,
        engine: Engine,
        load: LoadTokens,
        *,
        model_digest: str,
        plan_digest: str,
        tolerance: float = 1e-4,
        watches: Mapping[tuple[str, int], Watch] = MappingProxyType({}),
        max_damage: float = MAX_DAMAGE,
    ) -> None:
        self._watches = watches
        self._rule = WindowRule(planner.settings.blocks, max_damage)
        self._planner, self._engine, self._load = planner, engine, load
        self._model, self._tolerance = model_digest, tolerance
        # Planners by the digest that verdicts state. With the preset `strides`, both digests are the same.
        self._planners = {plan_digest: planner, strides_digest(planner): planner.alone()}

    def replay(self, epoch: EpochRecords) -> Iterator[Finding]:
        """Check every verdict of an epoch, and yield the findings in the order of the windows."""
        played = {digest: self._played(epoch, digest) for digest in self._planners}
        before: dict[tuple[str, int], Verdict] = {}
        for index in sorted(epoch.verdicts):
            group = epoch.verdicts[index]
            computed = [verdict for verdict in group if _computed(verdict)]
            for verdict in group:
                if verdict.basis == "idle":
                    yield _repeated(verdict, before.get((verdict.watch, verdict.watch_version)))
                elif verdict.outcome == Verdict.OUTCOME_GATED:
                    yield self._gated(epoch, verdict)
                elif not _computed(verdict):
                    yield Finding(verdict, Kind.UNANSWERED)
            for verdict in computed:
                if reason := self._incomputable_reason(verdict):
                    yield Finding(verdict, Kind.UNVERIFIED, reason=reason)
            for digest, windows in played.items():
                if verdicts := self._computable(epoch, index, digest):
                    yield from self._compared(next(windows), verdicts)
            before.update({(verdict.watch, verdict.watch_version): verdict for verdict in computed})

    def _gated(self, epoch: EpochRecords, verdict: Verdict) -> Finding:
        """Check that a watch's gate was closed, from the window's records and the gate's answers."""
        watch = self._watches.get((verdict.watch, verdict.watch_version))
        if watch is None or verdict.window not in epoch.blocks:
            missing = "its block" if watch is not None else "this version of its watch"
            return Finding(verdict, Kind.EXPIRED, reason=f"{missing} is past its retention")
        gate = PastGate(watch, epoch, self._rule, self._planner.settings.samples)
        if gate.refusal(verdict.window) is not None:
            return Finding(verdict, Kind.VERIFIED)
        return Finding(
            verdict, Kind.UNVERIFIED, reason="its question was not asked, although its gate was open"
        )

    def _played(self, epoch: EpochRecords, digest: str) -> Iterator[ReplayedWindow]:
        """Compute all windows again that were planned with the settings of this digest."""
        planner = self._planners[digest]
        windows = [
            replace(
                window,
                questions=[Question(verdict.id, verdict.question) for verdict in verdicts],
                since_key=None if planner.settings.alone else window.since_key,
            )
            for window in chain_windows(epoch)
            if (verdicts := self._computable(epoch, window.index, digest))
        ]
        return replay_epoch(epoch, windows, self._engine, planner, self._load, model_digest=self._model)

    def _computable(self, epoch: EpochRecords, window: int, digest: str) -> list[Verdict]:
        """Return the verdicts of a window that have this plan digest and that this model can compute."""
        return [
            verdict
            for verdict in epoch.verdicts.get(window, ())
            if _computed(verdict) and verdict.plan_digest == digest and not self._incomputable_reason(verdict)
        ]

    def _incomputable_reason(self, verdict: Verdict) -> str:
        """Return why this model or these settings cannot compute a verdict; empty if they can."""
        if verdict.model_digest != self._model:
            return f"it was answered by model {verdict.model_digest}, but this model is {self._model}"
        if verdict.plan_digest not in self._planners:
            return "its window was planned with other settings; give the settings of the fleet"
        return ""

    def _compared(self, played: ReplayedWindow, verdicts: Sequence[Verdict]) -> Iterator[Finding]:
        if played.answered is None:
            kind = Kind.EXPIRED if isinstance(played.error, BlockGoneError) else Kind.UNVERIFIED
            yield from (Finding(verdict, kind, reason=str(played.error)) for verdict in verdicts)
            return
        for verdict, answer in zip(verdicts, played.answered.answer.answers, strict=True):
            p_yes = answer.p_yes
            shares = zip(answer.shares, (share.p for share in verdict.answers), strict=False)
            difference = max((abs(a - b) for a, b in shares), default=0.0)
            if difference > self._tolerance or len(answer.shares) != len(verdict.answers):
                why = f"the probabilities of its allowed answers differ by up to {difference:.6f}"
                yield Finding(verdict, Kind.UNVERIFIED, p_yes, why)
            elif abs(p_yes - verdict.p_yes) <= self._tolerance:
                yield Finding(verdict, Kind.VERIFIED, p_yes)
            else:
                why = f"p_yes is {verdict.p_yes:.6f}, but computing it again gave {p_yes:.6f}"
                yield Finding(verdict, Kind.UNVERIFIED, p_yes, why)


def _computed(verdict: Verdict) -> bool:
    return verdict.outcome == Verdict.OUTCOME_ANSWERED and verdict.basis != "idle"


def _repeated(verdict: Verdict, before: Verdict | None) -> Finding:
    """Check an idle window's verdict, which must repeat `before`, the last computed answer to its
    question."""
    if before is None:
        return Finding(verdict, Kind.EXPIRED, reason="the answer that it repeats is no longer in verdicts.v1")
    equal = verdict.p_yes == before.p_yes and list(verdict.answers) == list(before.answers)
    why = "" if equal else f"it should repeat p_yes {before.p_yes:.6f}, but has {verdict.p_yes:.6f}"
    return Finding(verdict, Kind.VERIFIED if equal else Kind.UNVERIFIED, before.p_yes, why)
