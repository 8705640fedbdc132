"""One epoch of a camera replayed: its verdicts computed again from their chains' key windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lookout.engines import Engine, EngineError, Question, WindowRequest
from lookout.services.prefill.blocks import empty_block
from lookout.store import LineageBrokenError
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.windows import Planner, StrideBlock, WindowError, WindowPlan

__all__ = ["Finding", "Kind", "Replayer"]

Load = Callable[[TokensRecord], StrideBlock]


class Kind(StrEnum):
    """What became of a verdict: computed again with the same p(yes); computed with another; the records it
    needs are past their retention; an outcome without an answer, which has nothing to compute."""

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    EXPIRED = "expired"
    UNANSWERED = "unanswered"


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict and what became of it. `p_yes` is what was computed, None where nothing was."""

    verdict: Verdict
    kind: Kind
    p_yes: float | None = None
    reason: str = ""


class _ExpiredError(Exception):
    """Records of a chain are no longer in Kafka."""


class _OtherError(Exception):
    """The window cannot be computed as its verdict says."""


class Replayer:
    """Replays chains of windows on an engine of its own.

    Args:
        planner: Plans windows with the settings of the fleet.
        engine: Computes them; it holds nothing of the fleet's.
        load: The block of a tokens record. Raises LineageBrokenError where its tokens cannot be made again.
        model_digest: Of the engine's model.
        plan_digest: Of the planner's settings, as verdicts carry it.
        tolerance: Difference of p(yes) up to which a verdict counts as verified.
    """

    def __init__(
        self,
        planner: Planner,
        engine: Engine,
        load: Load,
        *,
        model_digest: str,
        plan_digest: str,
        tolerance: float = 1e-4,
    ) -> None:
        self._planner, self._engine, self._load = planner, engine, load
        self._model, self._plan_digest, self._tolerance = model_digest, plan_digest, tolerance

    def replay(
        self, records: Mapping[int, TokensRecord], verdicts: Mapping[int, Sequence[Verdict]]
    ) -> Iterator[Finding]:
        """What became of every verdict.

        Args:
            records: The epoch's blocks by index, as far as Kafka still has them.
            verdicts: Its verdicts by window.
        """
        chain = _Chain(self, records, verdicts)
        said: dict[tuple[str, int], Verdict] = {}
        for window in sorted(verdicts):
            group = verdicts[window]
            computed = [each for each in group if _computed(each)]
            yield from (
                _repeated(each, said.get((each.watch, each.watch_version)))
                if each.basis == "idle"
                else Finding(each, Kind.UNANSWERED)
                for each in group
                if not _computed(each)
            )
            if computed:
                yield from self._checked(chain, window, computed)
            said.update({(each.watch, each.watch_version): each for each in computed})
        chain.close()

    def _checked(self, chain: _Chain, window: int, verdicts: Sequence[Verdict]) -> Iterator[Finding]:
        first = verdicts[0]
        try:
            if first.model_digest != self._model:
                raise _OtherError(f"answered by model {first.model_digest}, this is {self._model}")
            if first.plan_digest != self._plan_digest:
                raise _OtherError("windows were planned with other settings: give those of the fleet")
            answers = chain.ask(window, first, [Question(each.id, each.question) for each in verdicts])
        except (_ExpiredError, LineageBrokenError) as error:
            yield from (Finding(each, Kind.EXPIRED, reason=str(error)) for each in verdicts)
        except (_OtherError, EngineError, WindowError) as error:
            yield from (Finding(each, Kind.UNVERIFIED, reason=str(error)) for each in verdicts)
        else:
            for verdict, p_yes in zip(verdicts, answers, strict=True):
                difference = abs(p_yes - verdict.p_yes)
                if difference <= self._tolerance:
                    yield Finding(verdict, Kind.VERIFIED, p_yes)
                else:
                    why = f"p_yes is {verdict.p_yes:.6f}, computed again {p_yes:.6f}"
                    yield Finding(verdict, Kind.UNVERIFIED, p_yes, why)


class _Chain:
    """The windows of one epoch, computed one after another."""

    def __init__(
        self,
        replayer: Replayer,
        records: Mapping[int, TokensRecord],
        verdicts: Mapping[int, Sequence[Verdict]],
    ) -> None:
        self._replayer, self._records, self._verdicts = replayer, records, verdicts
        self._plan: WindowPlan | None = None
        self._blocks: dict[int, StrideBlock] = {}

    def ask(self, window: int, verdict: Verdict, questions: Sequence[Question]) -> list[float]:
        """p(yes) of the questions at the end of the window that `verdict` is about."""
        plan, since = self._plan, verdict.since_key
        continues = plan is not None and plan.window == window - 1 and plan.since_key == since - 1
        if since and not continues:
            for step in range(window - since, window):
                self._compute(step, step - (window - since), [])
        return self._compute(window, since, questions)

    def close(self) -> None:
        """Let go of the KV."""
        if self._plan is not None:
            self._replayer._engine.close_stream(self._plan.stream)

    def _compute(self, window: int, since: int, questions: Sequence[Question]) -> list[float]:
        planner, previous = self._replayer._planner, self._plan
        self._plan = None
        blocks = self._window(window)
        plan = planner.plan(blocks, previous if since else None, key=since == 0)
        if plan.since_key != since:
            raise _OtherError(f"window {window} does not continue the one before it")
        request = WindowRequest(plan, blocks, questions)
        answer = self._replayer._engine.run([request])[0].unwrap()
        self._plan = plan
        return [each.p_yes for each in answer.answers]

    def _window(self, window: int) -> list[StrideBlock]:
        """The blocks that the window was computed from."""
        size = self._replayer._planner.settings.blocks
        group = self._verdicts.get(window)
        first = max(0, window - size + 1)
        newest = self._records.get(window)
        if group and newest is not None:
            length_us = newest.block.end_us - newest.block.start_us
            first = round(group[0].stream_start_s * 1e6 / length_us)
        missing = [index for index in range(first, window + 1) if index not in self._records]
        if missing:
            raise _ExpiredError(f"tokens.v1 no longer holds block {missing[0]}")
        self._blocks = {index: block for index, block in self._blocks.items() if index >= first}
        return [self._block(index) for index in range(first, window + 1)]

    def _block(self, index: int) -> StrideBlock:
        if index not in self._blocks:
            record = self._records[index]
            foreign = record.block.model_digest not in ("", self._replayer._model)
            self._blocks[index] = empty_block(record) if foreign else self._replayer._load(record)
        return self._blocks[index]


def _computed(verdict: Verdict) -> bool:
    return verdict.outcome == Verdict.OUTCOME_ANSWERED and verdict.basis != "idle"


def _repeated(verdict: Verdict, before: Verdict | None) -> Finding:
    """An idle window repeats the last computed answer of its question."""
    if before is None:
        return Finding(verdict, Kind.EXPIRED, reason="the answer that it repeats is no longer in verdicts.v1")
    same = verdict.p_yes == before.p_yes
    why = "" if same else f"it repeats {before.p_yes:.6f} as {verdict.p_yes:.6f}"
    return Finding(verdict, Kind.VERIFIED if same else Kind.UNVERIFIED, before.p_yes, why)
