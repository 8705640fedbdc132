"""Answers the windows of one stream, each of which continues the KV of the previous window (a chain).

`ChainRule` plans a window, retries it as a key window if it fails, and audits it. Its method `steps` is a
generator that yields requests to the engine and receives answers. A service sends these requests one by one
to a batcher that serves many cameras (`ChainRunner`). A player sends the requests of many streams as one
batch (`run_batch`). Both plan the same windows.
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
#: `basis` of a window in which every stride was asked in a separate prompt
STRIDES: Final = "strides"


class Answerer(Protocol):
    """Answers one window (`lookout.services.prefill.batcher.Batcher`, `EngineAnswers`)."""

    def answer(self, request: WindowRequest) -> WindowAnswer:
        """Return the answer to one window. An engine error is not raised but returned in
        `WindowAnswer.error`."""
        ...

    def forget(self, stream: str) -> None:
        """Free a stream's KV."""
        ...


@dataclass(frozen=True, slots=True)
class EngineAnswers:
    """An engine that answers one window at a time."""

    engine: Engine

    def answer(self, request: WindowRequest) -> WindowAnswer:
        """Return the answer to one window. An engine error is not raised but returned in
        `WindowAnswer.error`."""
        return self.engine.run([request])[0]

    def forget(self, stream: str) -> None:
        """Free a stream's KV."""
        self.engine.close_stream(stream)


@dataclass(slots=True)
class WindowChain:
    """The chain of one stream's windows.

    Attributes:
        key_every: Strides from one key window to the next; at most `WindowSettings.key_every`.
        plan: Plan of the newest window, whose KV the engine should have. None: the next window is a key
            window.
        strides: The answers of the newest window's strides that were asked in separate prompts
            (`WindowSettings.alone`), by block index. A missing stride is asked again, for example after a
            restart. A chain may have `plan` and `strides`, because some of a camera's watches may ask about
            windows and others about strides.
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

    `key`: in full, as the first window of a chain. `full`: as part of a chain, but every row after the prefix
    was computed. `incremental`: KV of frames of the previous window was reused.
    """
    if plan.parent is None:
        return "key"
    prefix = plan.parts[0].stop
    return "full" if answer.cost.tokens_reused <= prefix else "incremental"


@dataclass(frozen=True, slots=True)
class AnsweredWindow:
    """An answered window.

    Attributes:
        plan: The window's plan.
        answer: The engine's answer.
        audit: The window's audit; None if it was not audited.
        alone: Whether each stride of the window was asked in a separate prompt.
    """

    plan: WindowPlan
    answer: WindowAnswer
    audit: Audit | None = None
    alone: bool = False

    @property
    def basis(self) -> str:
        """How the window was computed: `key`, `full`, `incremental` or `strides`."""
        return STRIDES if self.alone else basis_of(self.plan, self.answer)


#: yields the requests for one window, receives the answer to each, and returns the answered window
WindowSteps = Generator[WindowRequest, WindowAnswer, AnsweredWindow]


@dataclass(frozen=True, slots=True)
class ChainRule:
    """How the windows of a chain are planned, retried and audited.

    Attributes:
        planner: Plans windows.
        reuse: Whether to keep KV between windows. If not, every window is a key window.
        audit_limit: Limit on `Audit.difference`. An audit above the limit halves the stream's interval
            between key windows; an audit below a quarter of the limit doubles the interval, up to `longest`.
            None: no audits.
    """

    planner: Planner
    reuse: bool = True
    audit_limit: float | None = None

    @property
    def longest(self) -> int:
        """Longest interval between key windows, in strides. It applies until an audit shortens it."""
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
            key: True: compute the window in full. False: continue the previous window, if there is one. None:
                compute it in full if a key window of the stream is due.
            audited: Whether a key window may be audited.

        Raises:
            EngineError: The window cannot be answered. The next window is then a key window.
            WindowError: The blocks do not form a window.
        """
        if self.planner.settings.alone:
            return (yield from self._strides_alone(chain, blocks, questions))
        # Cleared until the window is answered, so that the chain has no plan if the window fails or the
        # caller abandons it.
        previous, chain.plan = chain.plan, None
        if not self.reuse:
            plan = self.planner.plan(blocks)
            return AnsweredWindow(plan, (yield self._request(plan, blocks, questions)).unwrap())
        due = key
        if due is None:
            # If there is no previous window, the planner begins a chain without being told.
            due = previous is not None and self.planner.is_due(previous, chain.key_every)
        trial = None
        if due and previous is not None and audited and self.audit_limit is not None:
            # The trial comes first, because the key window overwrites the KV that the trial continues.
            trial = yield from self._trial(previous, blocks, questions)
        plan = self.planner.plan(blocks, previous, key=due)
        if key is None and plan.parent is not None and not reuses_frames(plan):
            # After a burst of motion, the plan computes every row anyway. A key window costs the same and
            # postpones the next one. If `key` is given, a window is replayed and must be planned as
            # originally.
            plan = self.planner.plan(blocks, key=True)
        window = yield from self._answered(plan, blocks, questions)
        chain.plan = window.plan
        if trial is None:
            return window
        audit = _audit(trial, window.answer)
        chain.key_every = self._interval(chain.key_every, audit)
        return replace(window, audit=audit)

    def _strides_alone(
        self, chain: WindowChain, blocks: Sequence[StrideBlock], questions: Sequence[Question]
    ) -> WindowSteps:
        """Ask about each stride in a separate prompt. Each question's answer is the one with the largest
        p(yes) of all strides. A stride that was asked for the previous window is not asked again."""
        previous_answers, chain.strides = chain.strides, {}
        visible = [block for block in blocks if block.frames] or list(blocks)
        strides: dict[int, list[tuple[Question, Answer]]] = {}
        costs: list[Cost] = []
        for block in visible:
            answers = [pair for pair in previous_answers.get(block.index, ()) if pair[0] in questions]
            answered = [question for question, _ in answers]
            missing = [question for question in questions if question not in answered]
            # Every window must make at least one request, because `run_batch` expects one.
            if missing or (block is visible[-1] and not costs):
                batch = missing or questions
                request = self._request(self.planner.plan([block]), [block], batch)
                answer = (yield request).unwrap()
                costs.append(answer.cost)
                answers = [pair for pair in answers if pair[0] not in batch]
                answers += zip(batch, answer.answers, strict=True)
            strides[block.index] = answers
        best_answers = [
            max(
                (answer for pairs in strides.values() for part, answer in pairs if part == question),
                key=_p_yes,
            )
            for question in questions
        ]
        chain.strides = strides
        # This plan of the whole window is never run. It only describes the window in the result.
        plan = self.planner.plan(blocks)
        answer = WindowAnswer(plan.stream, plan.window, tuple(best_answers), reduce(add, costs))
        return AnsweredWindow(plan, answer, alone=True)

    def _answered(
        self, plan: WindowPlan, blocks: Sequence[StrideBlock], questions: Sequence[Question]
    ) -> WindowSteps:
        """Answer the window as planned or, if its stream is lost or fails, as a key window."""
        for remaining in reversed(range(TRIES)):
            answer = yield self._request(plan, blocks, questions)
            # Only errors caused by the stream's KV are retried. Any other error would occur again.
            if not remaining or not isinstance(answer.error, (StreamLostError, StreamFailedError)):
                return AnsweredWindow(plan, answer.unwrap())
            plan = self.planner.plan(blocks, key=True)
        raise AssertionError("unreachable")

    def _trial(
        self, previous: WindowPlan, blocks: Sequence[StrideBlock], questions: Sequence[Question]
    ) -> Generator[WindowRequest, WindowAnswer, WindowAnswer | None]:
        """Return the incremental answer to a window that will then be computed as a key window, so that an
        audit can compare both answers. None: there is no KV to continue, or the attempt failed."""
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
        """Return a stream's new interval between key windows, given its interval so far and an audit."""
        if self.audit_limit is None:
            return every
        if audit.difference > self.audit_limit:
            return max(1, every // 2)
        if audit.difference < self.audit_limit / 4:
            return min(self.longest, every * 2)
        # Between a quarter of the limit and the limit, the interval stays, so that it does not oscillate.
        return every


def _p_yes(answer: Answer) -> float:
    return answer.p_yes


class ChainRunner:
    """Answers windows of chains one at a time; thread-safe.

    A window reuses the KV of the previous window only if that KV was computed from the chain's plan, which
    the engine checks by the plan's digest. KV of a window that was never committed is therefore never used.
    After an abort or a takeover, the chain has no plan, so its next window is a key window.

    Args:
        rule: Plans, retries and audits windows.
        answers: Answers the windows.
    """

    def __init__(self, rule: ChainRule, answers: Answerer) -> None:
        self.rule, self._answers = rule, answers

    def alone(self) -> ChainRunner:
        """Return a runner for the same windows that asks about each stride in a separate prompt."""
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
            EngineError: The window cannot be answered. The next window is then a key window.
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
    """Return the answered windows of several streams, in the order of `windows`.

    The first requests of all windows form one batch, the second requests form the next batch, and so on.

    Raises:
        EngineError: A window cannot be computed.
    """
    answered: dict[int, AnsweredWindow] = {}
    # Every generator yields at least one request.
    requests = {index: next(steps) for index, steps in enumerate(windows)}
    while requests:
        answers = engine.run(list(requests.values()))
        next_requests: dict[int, WindowRequest] = {}
        for index, answer in zip(requests, answers, strict=True):
            try:
                next_requests[index] = windows[index].send(answer)
            except StopIteration as end:
                answered[index] = end.value
        requests = next_requests
    return [answered[index] for index in range(len(windows))]


def _audit(incremental: WindowAnswer, full: WindowAnswer) -> Audit:
    pairs = zip(incremental.answers, full.answers, strict=True)
    difference = max((abs(answer.p_yes - full_answer.p_yes) for answer, full_answer in pairs), default=0.0)
    return Audit(difference, incremental.cost.total_flops, incremental.cost.seconds)
