"""One camera's windows as a chain: which continue the KV that the engine holds, and which are key windows."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

from lookout.engines import (
    EngineError,
    Question,
    StreamFailedError,
    StreamLostError,
    WindowAnswer,
    WindowRequest,
)
from lookout.streams import basis_of
from lookout.windows import Planner, StrideBlock, WindowPlan
from lookout.worker import digest

__all__ = ["AnsweredWindow", "Answers", "Audit", "ChainRunner", "WindowChain", "plan_digest"]

TRIES = 2  # of a window: as planned, then as a key window


class Answers(Protocol):
    """What answers one window (`lookout.services.prefill.batcher.Batcher`)."""

    def answer(self, request: WindowRequest) -> WindowAnswer: ...

    def forget(self, stream: str) -> None: ...


@dataclass(slots=True)
class WindowChain:
    """The chain of one camera.

    Attributes:
        key_every: Strides between key windows; at most those of the settings.
        plan: The newest window, whose KV the engine should hold. None: the next one is a key window.
    """

    key_every: int
    plan: WindowPlan | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """A key stride answered incrementally as well.

    Attributes:
        difference: Largest |p(yes) incremental - p(yes) in full| over the questions.
        flops: What the incremental answer cost.
    """

    difference: float
    flops: int


@dataclass(frozen=True, slots=True)
class AnsweredWindow:
    """An answered window: how it was planned, what the engine said, and its audit if there was one."""

    plan: WindowPlan
    answer: WindowAnswer
    audit: Audit | None = None

    @property
    def basis(self) -> str:
        """How the window was computed: `key`, `full` or `incremental`."""
        return basis_of(self.plan, self.answer)


class ChainRunner:
    """Plans and asks windows.

    A window continues the one before it only while the state that asks and the engine agree on the plan whose
    KV is held. The engine compares digests, so KV that ran ahead of what is committed never answers: after an
    abort or a takeover the state starts without a plan, and the window is a key window.

    Args:
        planner: Plans windows.
        answers: Answers them.
        reuse: Keep KV between windows; otherwise every window is a key window and nothing is kept.
        audit_limit: A difference above it halves a camera's interval between key windows; one below a quarter
            of it doubles the interval again. None: no audits.
    """

    def __init__(
        self, planner: Planner, answers: Answers, *, reuse: bool = True, audit_limit: float | None = None
    ) -> None:
        self._planner, self._answers = planner, answers
        self._reuse, self._audit_limit = reuse, audit_limit

    @property
    def digest(self) -> str:
        """Names the settings that windows are planned with: an answer is recomputed under the same."""
        return plan_digest(self._planner, self._reuse)

    @property
    def longest(self) -> int:
        """Strides between key windows of a camera whose audits are within the limit."""
        return self._planner.settings.key_every

    def ask(
        self,
        chain: WindowChain,
        blocks: Sequence[StrideBlock],
        questions: Sequence[Question],
        *,
        audited: bool = True,
    ) -> AnsweredWindow:
        """Answer the window of `blocks`, and move the chain to it.

        Raises:
            EngineError: The window cannot be answered; the next one is a key window.
            WindowError: The blocks make no window.
        """
        previous, chain.plan = chain.plan, None
        if not self._reuse:
            plan = self._planner.plan(blocks)
            return AnsweredWindow(plan, self._once(plan, blocks, questions))
        due = self._planner.is_key(blocks[0].stream, blocks[-1].index, chain.key_every)
        audit = None
        if due and previous is not None and audited and self._audit_limit is not None:
            trial = self._planner.plan(blocks, previous, key=False)
            tried = self._trial(trial, blocks, questions)
            done = self._answered(self._planner.plan(blocks, key=True), blocks, questions)
            audit = None if tried is None else _audit(tried, done.answer)
            chain.key_every = self._interval(chain.key_every, audit)
        else:
            done = self._answered(self._planner.plan(blocks, previous, key=due), blocks, questions)
        chain.plan = done.plan
        return replace(done, audit=audit)

    def forget(self, stream: str) -> None:
        """Let go of a stream's KV."""
        if self._reuse:
            self._answers.forget(stream)

    def _answered(
        self, plan: WindowPlan, blocks: Sequence[StrideBlock], questions: Sequence[Question]
    ) -> AnsweredWindow:
        """The window as planned; where its stream is lost or fails, as a key window."""
        for left in reversed(range(TRIES)):
            try:
                return AnsweredWindow(plan, self._once(plan, blocks, questions))
            except (StreamLostError, StreamFailedError):
                if not left:
                    raise
                plan = self._planner.plan(blocks, key=True)
        raise AssertionError("unreachable")

    def _trial(
        self, plan: WindowPlan, blocks: Sequence[StrideBlock], questions: Sequence[Question]
    ) -> WindowAnswer | None:
        """The incremental answer of a key stride; None where the engine no longer has its KV."""
        if plan.parent is None:
            return None
        plain = [replace(question, describe=0) for question in questions]
        try:
            return self._once(plan, blocks, plain)
        except EngineError:
            return None

    def _once(
        self, plan: WindowPlan, blocks: Sequence[StrideBlock], questions: Sequence[Question]
    ) -> WindowAnswer:
        return self._answers.answer(WindowRequest(plan, blocks, questions, keep=self._reuse)).unwrap()

    def _interval(self, every: int, audit: Audit | None) -> int:
        if audit is None or self._audit_limit is None:
            return every
        if audit.difference > self._audit_limit:
            return max(1, every // 2)
        if audit.difference < self._audit_limit / 4:
            return min(self.longest, every * 2)
        return every


def plan_digest(planner: Planner, reuse: bool) -> str:
    """Names the settings that windows are planned with."""
    settings = planner.settings
    return digest(*(getattr(settings, each.name) for each in fields(settings)), reuse)


def _audit(trial: WindowAnswer, full: WindowAnswer) -> Audit:
    pairs = zip(trial.answers, full.answers, strict=True)
    difference = max((abs(one.p_yes - other.p_yes) for one, other in pairs), default=0.0)
    return Audit(difference, trial.cost.total_flops)
