"""Reads every committed verdict in scope from Kafka and computes it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from lookout.administration import standing_of
from lookout.models.engines import Engine, Question
from lookout.models.windows import Planner, StrideBlock
from lookout.past.verification.fleet import fleet_replay
from lookout.past.verification.replay import Finding, Kind, Replayer
from lookout.past.verification.spread import rerun_spread
from lookout.runtime.store import LineageBrokenError
from lookout.runtime.worker.topic_reader import read_topic
from lookout.services.prefill.settings import PrefillSettings
from lookout.streams.chains import EpochRecords, LoadTokens, PastScope, plan_digest, read_epochs
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.wire import WATCHES

#: tolerance that covers the rounding of float32 in other batches
FLOAT32 = 1e-4
_SPREAD_CHAINS, _SPREAD_QUESTIONS = 2, 8


@dataclass(slots=True)
class Tally:
    """The result of a verification.

    Attributes:
        counts: Number of verdicts by the result of their check (values of `Kind`).
        largest: Largest difference of p(yes).
        tolerance: Maximum difference of p(yes) of a verified verdict.
        unverified: Findings about the verdicts that could not be verified.
    """

    counts: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0
    tolerance: float = 0.0
    unverified: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Count a finding."""
        self.counts[finding.kind.value] += 1
        if finding.p_yes is not None:
            self.largest = max(self.largest, abs(finding.p_yes - finding.verdict.p_yes))
        if finding.kind is Kind.UNVERIFIED:
            self.unverified.append(finding)

    def to_dict(self) -> dict[str, float]:
        """Return the counts for JSON."""
        return {
            **{kind.value: self.counts[kind.value] for kind in Kind},
            "largest_difference": self.largest,
            "tolerance": self.tolerance,
        }


def verify(
    model: Path,
    bootstrap: str,
    scope: PastScope | None = None,
    *,
    common: Mapping[str, Any] | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    tolerance: float | None = None,
    progress: Callable[[int, int], object] = lambda count, total: None,
) -> Tally:
    """Compute the verdicts in scope again and compare p(yes).

    Args:
        model: Folder of the fleet's model.
        bootstrap: Addresses of the Kafka brokers.
        scope: Which verdicts to check; None: all.
        common: Settings of the whole fleet that differ from the defaults.
        own: Settings of single services that differ from the defaults, by service name.
        tolerance: Maximum difference of p(yes) of a verified verdict. None: 1e-4 for models in float32; for
            others, twice the difference that `rerun_spread` measures on the longest chains, and at least
            1e-4. It is doubled because the fleet's run and this run may both be that far from the exact
            answer.
        progress: Called with the number of verdicts done and their total.

    Raises:
        LookoutError: The settings or the model cannot be used.
        TimeoutError: A topic cannot be read to its end.
    """
    scope = scope or PastScope()
    tally = Tally()
    with fleet_replay(model, bootstrap, common, own) as fleet:
        settings, engine, planner = fleet.settings, fleet.engine, fleet.planner
        epochs = _epochs(settings, scope)
        if tolerance is None:
            tolerance = FLOAT32
            if settings.dtype != "float32":
                tolerance = max(FLOAT32, 2 * _spread(engine, planner, fleet.load, epochs))
        tally.tolerance = tolerance
        total = sum(len(group) for epoch in epochs for group in epoch.verdicts.values())
        replayer = Replayer(
            planner,
            engine,
            fleet.load,
            model_digest=fleet.model_digest,
            plan_digest=plan_digest(planner, reuse=settings.reuse),
            tolerance=tolerance,
            watches=_watches(settings, epochs),
            max_damage=settings.max_damage,
        )
        count = 0
        for epoch in epochs:
            for finding in replayer.replay(epoch):
                if scope.has(finding.verdict):
                    tally.add(finding)
                count += 1
                progress(count, total)
    return tally


def _watches(settings: PrefillSettings, epochs: Sequence[EpochRecords]) -> dict[tuple[str, int], Watch]:
    """Return all watches by id and version if a verdict says that a gate was closed; otherwise none."""
    verdicts = chain.from_iterable(chain.from_iterable(epoch.verdicts.values()) for epoch in epochs)
    if not any(verdict.outcome == Verdict.OUTCOME_GATED for verdict in verdicts):
        return {}
    rows = (
        (message.key() or b"", message.value()) for message in read_topic(settings, "verify", WATCHES.name)
    )
    return {
        (watch.id, watch.version): watch
        for written in standing_of(rows).written.values()
        for watch in written
    }


def _epochs(settings: PrefillSettings, scope: PastScope) -> list[EpochRecords]:
    """Read the epochs with verdicts in scope, and the chains that these verdicts need."""
    strides = settings.windows.longest_chain + settings.window_blocks
    reach_s = strides * settings.stride_s + (settings.idle_age_s or 0.0)
    epochs = read_epochs(
        settings, scope, reach_s, lambda epoch: _is_complete(epoch, scope, settings.window_blocks)
    )
    return [epoch for epoch in epochs if any(map(scope.has, chain.from_iterable(epoch.verdicts.values())))]


def _spread(engine: Engine, planner: Planner, load: LoadTokens, epochs: Sequence[EpochRecords]) -> float:
    """Measure `rerun_spread` on chains of the epochs with most blocks, with questions that the fleet
    answered."""
    longest = planner.settings.longest_chain + planner.settings.blocks - 1
    texts = {verdict.question for epoch in epochs for group in epoch.verdicts.values() for verdict in group}
    chains: list[list[StrideBlock]] = []
    for epoch in sorted(epochs, key=lambda epoch: -len(epoch.blocks))[:_SPREAD_CHAINS]:
        blocks: list[StrideBlock] = []
        for index in sorted(epoch.blocks)[:longest]:
            if blocks and blocks[-1].index != index - 1:
                break
            try:
                blocks.append(load(epoch.blocks[index]))
            except LineageBrokenError:
                blocks.clear()
        if any(block.frames for block in blocks):
            chains.append(blocks)
    questions = [Question(text, text) for text in sorted(texts)[:_SPREAD_QUESTIONS]]
    return rerun_spread(engine, planner, chains, questions)


def _is_complete(epoch: EpochRecords, scope: PastScope, blocks: int) -> bool:
    """Whether the chains of the verdicts in scope were read from their first window, including all `blocks`
    stride blocks of that window."""
    answered = [
        verdict
        for group in epoch.verdicts.values()
        for verdict in group
        if verdict.outcome == Verdict.OUTCOME_ANSWERED
    ]
    first: dict[str, int] = {}  # the first computed window of each watch
    for verdict in answered:
        if verdict.basis != "idle":
            first[verdict.watch] = min(verdict.window, first.get(verdict.watch, verdict.window))
    return all(
        first.get(verdict.watch, verdict.window) < verdict.window
        if verdict.basis == "idle"
        else {max(0, verdict.window - verdict.since_key - blocks + 1), verdict.window} <= epoch.blocks.keys()
        for verdict in answered
        if scope.has(verdict)
    )
