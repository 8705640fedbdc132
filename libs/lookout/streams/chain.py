"""One stream's windows as a chain: plan, run, retry as a key window, audit, forget.

The engine's part of a window is written as a generator (`ChainRule.steps`), which yields requests and
receives answers. A service sends them one by one to a batcher that it shares with other cameras
(`ChainRunner`); a player sends the requests of many streams as one batch (`run_batch`). Both plan the same
windows.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Final, Protocol

from lookout.models.engines import (
    Answer,
    Cost,
    Engine,
    Question,
    StreamFailedError,
    StreamLostError,
    WindowAnswer,
    WindowRequest,
)
from lookout.models.windows import Planner, StrideBlock, WindowPlan, reuses_frames

#: attempts to answer a window: as planned, then as a key window
TRIES: Final = 2
#: basis of a window whose strides were asked alone
STRIDES: Final = "strides"


class Answerer(Protocol):
    """Answers one window (`lookout.services.prefill.batcher.Batcher`, `EngineAnswers`)."""

    def answer(self, request: WindowRequest) -> WindowAnswer:
        """Return the answer to one window; errors are in the answer."""
        ...

    def forget(self, stream: str) -> None:
        """Free a stream's KV."""
        ...


@dataclass(frozen=True, slots=True)
class EngineAnswers:
    """An engine that answers one window at a time."""

    engine: Engine

    def answer(self, request: WindowRequest) -> WindowAnswer:
        """Return the answer to one window; errors are in the answer."""
        return self.engine.run([request])[0]

    def forget(self, stream: str) -> None:
        """Free a stream's KV."""
        self.engine.close_stream(stream)


@dataclass(slots=True)
class WindowChain:
    """The chain of one stream's windows.

    Attributes:
        key_every: Strides between key windows; at most those of the settings.
        plan: Plan of the newest window, whose KV the engine should have. None: the next window is a key
            window.
        strides: The answers of strides that were asked alone (`WindowSettings.alone`) for the newest window,
            by index. Missing ones are asked again, for example after a restart. A chain may have both: a
            camera's watches may be asked about windows and about strides.
    """

    key_every: int
    plan: WindowPlan | None = None
    strides: Mapping[int, Sequence[tuple[Question, Answer]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Audit:
    """Comparison of a key window with an incremental answer to the same window.

    Attributes:
        difference: Largest |p(yes) incremental - p(yes) in full| over the questions.
        flops: FLOPs of the incremental answer.
        seconds: Measured time of the incremental answer; 0 if it was not measured.
    """

    difference: float
    flops: int
    seconds: float = 0.0


def basis_of(plan: WindowPlan, answer: WindowAnswer) -> str:
    """Return how a window was computed.

    `key`: in full, as the beginning of a chain; `full`: the window continues a chain, but every row after the
    prefix was computed; `incremental`: KV of frames of the previous window was reused.
    """
    if plan.parent is None:
        return "key"
    prefix = plan.parts[0].stop
    return "full" if answer.cost.tokens_reused <= prefix else "incremental"


@dataclass(frozen=True, slots=True)
class AnsweredWindow:
    """An answered window: its plan, the engine's answer, and its audit if there was one. `alone`: each of
    its strides was asked alone."""

    plan: WindowPlan
    answer: WindowAnswer
    audit: Audit | None = None
    alone: bool = False

    @property
    def basis(self) -> str:
        """How the window was computed: `key`, `full`, `incremental` or `strides`."""
        return STRIDES if self.alone else basis_of(self.plan, self.answer)


#: the requests for one window, in the order in which the answers are needed; returns the answered window
WindowSteps = Generator[WindowRequest, WindowAnswer, AnsweredWindow]


@dataclass(frozen=True, slots=True)
class ChainRule:
    """How the windows of a chain are planned, retried and audited.

    Attributes:
        planner: Plans windows.
        reuse: Whether to keep KV between windows; otherwise every window is a key window and nothing is kept.
        audit_limit: A larger difference halves a stream's interval between key windows; a difference below a
            quarter of it doubles the interval again. None: no audits.
    """

    planner: Planner
    reuse: bool = True
    audit_limit: float | None = None

    @property
    def longest(self) -> int:
        """Longest interval between key windows, in strides: the interval of a stream whose audits are within
        the limit."""
        return self.planner.settings.key_every

    @property
    def keeps(self) -> bool:
        """Whether KV is kept between windows."""
        return self.reuse and not self.planner.settings.alone

    def begin(self) -> WindowChain:
        """Return a new chain for a stream without KV."""
        return WindowChain(self.longest)

    def steps(
        self,
        chain: WindowChain,
        blocks: Sequence[StrideBlock],
        questions: Sequence[Question],
        *,
        key: bool | None = None,
        audited: bool = True,
    ) -> WindowSteps:
        """Answer the window of `blocks`, and advance the chain to it.

        Args:
            chain: The chain of the blocks' stream.
            blocks: Blocks of the window, oldest first.
            questions: Asked at the window's end.
            key: True: compute the window in full; False: continue the previous window, if there is one; None:
                the stream's phase decides.
            audited: Whether a key window may be audited.

        Raises:
            EngineError: The window cannot be answered; the next one is a key window.
            WindowError: The blocks do not form a window.
        """
        if self.planner.settings.alone:
            return (yield from self._alone(chain, blocks, questions))
        # A window that fails, or that the caller abandons, leaves the chain without a plan.
        previous, chain.plan = chain.plan, None
        if not self.reuse:
            plan = self.planner.plan(blocks)
            return AnsweredWindow(plan, (yield self._request(plan, blocks, questions)).unwrap())
        due = key
        if due is None:
            # Without a previous window, the planner begins a chain anyway.
            due = previous is not None and self.planner.is_due(previous, chain.key_every)
        trial = None
        if due and previous is not None and audited and self.audit_limit is not None:
            # The trial comes first, because the key window overwrites the KV that the trial continues.
            trial = yield from self._trial(previous, blocks, questions)
        plan = self.planner.plan(blocks, previous, key=due)
        if key is None and plan.parent is not None and not reuses_frames(plan):
            # After a burst the plan computes everything anyway, so begin a new chain here, which postpones
            # the next key window. A replayed window (`key` is given) is planned as it originally was.
            plan = self.planner.plan(blocks, key=True)
        window = yield from self._answered(plan, blocks, questions)
        chain.plan = window.plan
        if trial is None:
            return window
        audit = _audit(trial, window.answer)
        chain.key_every = self._interval(chain.key_every, audit)
        return replace(window, audit=audit)

    def _alone(
        self, chain: WindowChain, blocks: Sequence[StrideBlock], questions: Sequence[Question]
    ) -> WindowSteps:
        """Ask each stride in a separate prompt, and return for each question the answer of the stride with
        the largest p(yes). Strides that were asked for the previous window are not asked again."""
        earlier, chain.strides = chain.strides, {}
        visible = [block for block in blocks if block.frames] or list(blocks)
        strides: dict[int, list[tuple[Question, Answer]]] = {}
        costs: list[Cost] = []
        for block in visible:
            answers = [pair for pair in earlier.get(block.index, ()) if pair[0] in questions]
            answered = [question for question, _ in answers]
            missing = [question for question in questions if question not in answered]
            # A window makes at least one request.
            if missing or (block is visible[-1] and not costs):
                batch = missing or questions
                request = self._request(self.planner.plan([block]), [block], batch)
                answer = (yield request).unwrap()
                costs.append(answer.cost)
                answers = [pair for pair in answers if pair[0] not in batch]
                answers += zip(batch, answer.answers, strict=True)
            strides[block.index] = answers
        highest = [
            max(
                (answer for pairs in strides.values() for part, answer in pairs if part == question),
                key=_p_yes,
            )
            for question in questions
        ]
        chain.strides = strides
        # The whole window's plan is never run; it only describes the window.
        plan = self.planner.plan(blocks)
        answer = WindowAnswer(plan.stream, plan.window, tuple(highest), reduce(add, costs))
        return AnsweredWindow(plan, answer, alone=True)

    def _answered(
        self, plan: WindowPlan, blocks: Sequence[StrideBlock], questions: Sequence[Question]
    ) -> WindowSteps:
        """Answer the window as planned or, if its stream is lost or fails, as a key window."""
        for remaining in reversed(range(TRIES)):
            answer = yield self._request(plan, blocks, questions)
            # Retry only errors caused by the stream's KV, because an error of the window itself would recur.
            if not remaining or not isinstance(answer.error, (StreamLostError, StreamFailedError)):
                return AnsweredWindow(plan, answer.unwrap())
            plan = self.planner.plan(blocks, key=True)
        raise AssertionError("unreachable")

    def _trial(
        self, previous: WindowPlan, blocks: Sequence[StrideBlock], questions: Sequence[Question]
    ) -> Generator[WindowRequest, WindowAnswer, WindowAnswer | None]:
        """Answer a window that is due as a key window incrementally first, so that an audit can compare both
        answers. None: there is nothing to continue, or the attempt failed."""
        plan = self.planner.plan(blocks, previous, key=False)
        if plan.parent is None:
            return None
        # Only p(yes) is compared, so no description is computed.
        plain = [replace(question, describe=0) for question in questions]
        answer = yield self._request(plan, blocks, plain)
        return answer if answer.error is None else None

    def _request(
        self, plan: WindowPlan, blocks: Sequence[StrideBlock], questions: Sequence[Question]
    ) -> WindowRequest:
        return WindowRequest(plan, blocks, questions, keep=self.keeps)

    def _interval(self, every: int, audit: Audit) -> int:
        if self.audit_limit is None:
            return every
        if audit.difference > self.audit_limit:
            return max(1, every // 2)
        if audit.difference < self.audit_limit / 4:
            # Nothing changes if the difference is between a quarter of the limit and the limit, so that the
            # interval does not oscillate.
            return min(self.longest, every * 2)
        return every


def _p_yes(answer: Answer) -> float:
    return answer.p_yes


class ChainRunner:
    """Answers windows of chains one at a time; thread-safe.

    A window continues the previous one only if the caller's chain and the engine agree on the plan whose KV
    is kept. The engine compares digests, so KV that is ahead of the committed state is never used: after an
    abort or a takeover, the chain has no plan, and the window is a key window.

    Args:
        rule: Plans, retries and audits windows.
        answers: Answers the windows.
    """

    def __init__(self, rule: ChainRule, answers: Answerer) -> None:
        self.rule, self._answers = rule, answers

    def alone(self) -> ChainRunner:
        """Return the runner that asks each stride of the same windows alone."""
        return ChainRunner(replace(self.rule, planner=self.rule.planner.alone()), self._answers)

    def ask(
        self,
        chain: WindowChain,
        blocks: Sequence[StrideBlock],
        questions: Sequence[Question],
        *,
        key: bool | None = None,
        audited: bool = True,
    ) -> AnsweredWindow:
        """Answer the window of `blocks`, and advance the chain to it; see `ChainRule.steps`.

        Raises:
            EngineError: The window cannot be answered; the next one is a key window.
            WindowError: The blocks do not form a window.
        """
        steps = self.rule.steps(chain, blocks, questions, key=key, audited=audited)
        request = next(steps)
        while True:
            try:
                request = steps.send(self._answers.answer(request))
            except StopIteration as end:
                window: AnsweredWindow = end.value
                return window

    def forget(self, stream: str) -> None:
        """Free a stream's KV."""
        if self.rule.keeps:
            self._answers.forget(stream)


def run_batch(engine: Engine, windows: Sequence[WindowSteps]) -> list[AnsweredWindow]:
    """Answer windows of several streams; return them in the same order. Each round of requests is one batch.

    Raises:
        EngineError: A window cannot be computed.
    """
    answered: dict[int, AnsweredWindow] = {}
    # Every generator yields at least one request.
    requests = {place: next(steps) for place, steps in enumerate(windows)}
    while requests:
        answers = engine.run(list(requests.values()))
        following: dict[int, WindowRequest] = {}
        for place, answer in zip(requests, answers, strict=True):
            try:
                following[place] = windows[place].send(answer)
            except StopIteration as end:
                answered[place] = end.value
        requests = following
    return [answered[place] for place in range(len(windows))]


def _audit(trial: WindowAnswer, full: WindowAnswer) -> Audit:
    pairs = zip(trial.answers, full.answers, strict=True)
    difference = max((abs(one.p_yes - other.p_yes) for one, other in pairs), default=0.0)
    return Audit(difference, trial.cost.total_flops, trial.cost.seconds)
