"""Asks a new question about an epoch's windows. Returns the outcomes that prefill would have published."""

from __future__ import annotations

from collections.abc import Container, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lookout.models import ListedQuestion, is_untrained
from lookout.models.engines import Engine, Question
from lookout.models.windows import Planner
from lookout.rules import asks_strides
from lookout.runtime.worker import WindowPlanSettings
from lookout.streams import Cause, ChainWindow, NoAnswer, ReplayedWindow, WindowRule
from lookout.streams.chains import (
    EpochRecords,
    LoadTokens,
    PastScope,
    chain_windows,
    is_repeated,
    replay_epoch,
)
from lookout.streams.chains.gates import PastGate
from lookout.streams.chains.verdicts import WindowTime, answered, repeated_verdict, unanswered
from lookout.v1.recordings_pb2 import BacktestCost
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch

#: outcomes of windows that had blocks
HAD_FRAMES: Final = (Verdict.OUTCOME_ANSWERED, Verdict.OUTCOME_GATED)


@dataclass(frozen=True, slots=True)
class PastVerdict:
    """An outcome that prefill would have published.

    Attributes:
        verdict: The verdict.
        computed_flops: FLOPs of the language model that computing the verdict took here.
        expired: Whether records that the window needs are past their retention.
    """

    verdict: Verdict
    computed_flops: int = 0
    expired: bool = False

    def add_cost(self, cost: BacktestCost) -> None:
        """Add what the window cost, and what it would cost without pruning and reuse."""
        cost.flops += self.computed_flops
        own = self.verdict.cost
        if self.verdict.HasField("p_yes"):
            cost.flops_windows += own.flops_vision + own.flops_prefill
            cost.flops_question += own.flops_question
            cost.flops_dense += own.flops_dense + own.flops_question


@dataclass(frozen=True, slots=True)
class PastWindows:
    """Asks questions about windows of the past.

    Attributes:
        settings: How the fleet plans windows.
        engine: Computes windows in this process; it has no state of the fleet.
        planner: Plans windows with the fleet's settings.
        load: Returns the block of a tokens record.
        model_digest: Digest of the engine's model.
        listed: The questions that the model was trained for; None: the model does not list them.
    """

    settings: WindowPlanSettings
    engine: Engine
    planner: Planner
    load: LoadTokens
    model_digest: str
    listed: tuple[ListedQuestion, ...] | None = None

    def verdicts(
        self,
        epoch: EpochRecords,
        watch: Watch,
        scope: PastScope,
        chosen: Container[int] | None = None,
    ) -> Generator[PastVerdict, None, None]:
        """Yield the outcomes of a watch's windows in scope, in order.

        A window is computed with the fleet's chain if verdicts of other watches show it, and otherwise with a
        new chain. If the fleet repeated an answer because nothing had changed, the previous answer is
        repeated here, too. If the watch's gate is closed, nothing is computed. A watch that asks about
        strides needs no chain.

        Args:
            epoch: The records of the epoch.
            watch: The watch with the question.
            scope: Which windows to ask about.
            chosen: Numbers of the windows in scope to ask about; None: all.
        """
        windows = {window.index: window for window in chain_windows(epoch)}
        inside = [
            index
            for index in windows
            if (chosen is None or index in chosen) and scope.includes(epoch.camera, epoch.end_ms(index))
        ]
        question = Question(watch.id, watch.question)
        asked = [replace(windows[index], questions=[question]) for index in inside if index in epoch.blocks]
        planner = self.planner
        if asks_strides(watch):
            planner, asked = planner.alone(), [replace(window, since_key=None) for window in asked]
        left_out: set[int] = set()
        played = self._played(epoch, planner, asked, left_out)
        first = inside[0] if inside else 0
        gate = PastGate(watch, epoch, self._rule, self.settings.block_samples, first)
        before: Verdict | None = None
        # Whether a repeated answer is known to the fleet: the first windows may repeat an answer from before
        # the scope, but a window after a gated one would repeat an answer that was never computed.
        is_known = True
        for number, index in enumerate(inside):
            past: PastVerdict | None
            if index not in epoch.blocks:
                past = self._without_record(epoch, index, watch)
            elif (refusal := gate.refusal(index)) is not None:
                left_out.add(index)
                before, is_known = None, False
                newest = epoch.blocks[index].block
                past = PastVerdict(unanswered(self._span(epoch, index), watch, refusal, newest=newest))
            elif number and is_repeated(epoch, index) and (before is not None or is_known):
                left_out.add(index)
                past = None if before is None else self._repeated(epoch, index, watch, before)
            else:
                past = self._outcome(epoch, watch, next(played))
                if past.verdict.HasField("p_yes"):
                    before = past.verdict
            if past is not None:
                gate.take(past.verdict)
                yield past

    @property
    def _rule(self) -> WindowRule:
        return WindowRule(self.settings.window_blocks, self.settings.max_damage)

    def _played(
        self,
        epoch: EpochRecords,
        planner: Planner,
        windows: Sequence[ChainWindow],
        left_out: Container[int],
    ) -> Iterator[ReplayedWindow]:
        return replay_epoch(
            epoch,
            windows,
            self.engine,
            planner,
            self.load,
            model_digest=self.model_digest,
            sampling=self.settings.sampling,
            rule=self._rule,
            left_out=left_out,
        )

    def _repeated(self, epoch: EpochRecords, index: int, watch: Watch, before: Verdict) -> PastVerdict:
        verdict = repeated_verdict(self._span(epoch, index), watch, before, epoch.blocks[index].block)
        verdict.untrained = before.untrained
        return PastVerdict(verdict)

    def _outcome(self, epoch: EpochRecords, watch: Watch, played: ReplayedWindow) -> PastVerdict:
        index = played.window.index
        span = self._span(epoch, index, len(played.blocks))
        newest = epoch.blocks[index].block
        if played.refusal is not None:
            return PastVerdict(unanswered(span, watch, played.refusal, newest=newest), played.flops)
        if played.answered is None:
            refusal = NoAnswer(Cause.TOKENS_LOST, str(played.error))
            return PastVerdict(unanswered(span, watch, refusal, newest=newest), played.flops, expired=True)
        blocks = [
            epoch.blocks[block.index].block
            for block in played.blocks
            if block.frames or block.index == index or not epoch.blocks[block.index].block.patches
        ]
        (answer,) = played.answered.answer.answers
        verdict = answered(span, watch, played.answered, answer, blocks=blocks)
        verdict.coverage, verdict.model_digest = played.coverage, self.model_digest
        verdict.untrained = is_untrained(self.listed, watch.question)
        return PastVerdict(verdict, played.flops)

    def _without_record(self, epoch: EpochRecords, index: int, watch: Watch) -> PastVerdict | None:
        """Return the outcome of a window without a block, such as one that an event closed; None if the block
        existed and is past its retention."""
        known = epoch.verdicts[index][0]
        if known.outcome in HAD_FRAMES:
            return None
        verdict = Verdict()
        verdict.CopyFrom(known)
        verdict.watch, verdict.watch_version, verdict.question = watch.id, watch.version, watch.question
        verdict.rule.CopyFrom(watch.rule)
        return PastVerdict(verdict)

    def _span(self, epoch: EpochRecords, index: int, blocks: int = 0) -> WindowTime:
        """Return the time of a window that has `blocks` blocks; 0: the usual number of blocks."""
        record = epoch.blocks[index]
        block = record.block
        length_us = block.end_us - block.start_us
        first = max(0, index + 1 - (blocks or self.settings.window_blocks))
        return WindowTime(
            epoch.camera, epoch.epoch, record.wall_offset_us, index, first * length_us, block.end_us
        )
