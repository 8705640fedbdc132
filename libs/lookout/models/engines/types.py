"""The interface of all engines: window requests in, answers with their cost out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from lookout.errors import LookoutError
from lookout.models.engines.budget import KvBudget
from lookout.models.flops import causal_pairs
from lookout.models.windows.layout import Layout
from lookout.models.windows.types import StrideBlock, WindowPlan


class EngineError(LookoutError, RuntimeError):
    """The engine cannot do what was requested; the message names the stream, the cause and the remedy."""


class UnsupportedModelError(EngineError):
    """The engine does not support the checkpoint's family, attention or position scaling."""


class PositionError(EngineError):
    """The window or a question needs positions beyond the model's range."""


class PlanError(EngineError):
    """The plan does not fit the model, the request's blocks, or the block table."""


class StreamLostError(EngineError):
    """The engine no longer has the KV that the plan continues. Plan a key window; the same plan would fail
    again."""


class StreamFailedError(StreamLostError):
    """A stream failed while it was computed. Its KV is dropped; other streams are not affected."""


class MemoryBudgetError(EngineError):
    """The window alone exceeds the engine's byte budget."""


class DeviceError(EngineError):
    """The device failed permanently, or has no memory for a single window: this process can compute nothing
    more. `Engine.run` raises it; it is never returned as a stream's answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """One standing question. `describe` > 0 asks for up to that many tokens of text if the answer is Yes; a
    question with a list of allowed answers (`lookout.structured`) never gets text."""

    id: str
    text: str
    describe: int = 0


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How an answer in words is written.

    Attributes:
        tokens: Maximum number of tokens.
        temperature: Sampling temperature; 0: always the most likely token.
        seed: Sampling seed.
        stop: The text ends before the first of these strings.
        schema: A JSON schema that the text follows; only vLLM supports one.
    """

    tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise PlanError(f"tokens={self.tokens}: a text must have at least 1 token")
        if not 0 <= self.temperature < float("inf"):
            raise PlanError(f"temperature={self.temperature}: the temperature must be finite and at least 0")


@dataclass(frozen=True, slots=True)
class AttendedFrame:
    """A frame of a window that an answer attends to: its block, its number within the block, and the share of
    the answer's attention on its most attended visual row (mean over layers and heads)."""

    block: int
    frame: int
    share: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question. p(yes) is the softmax of the Yes and No logits at the first answer token.

    Attributes:
        tokens: Length of the question's suffixes: the number of rows that the question added.
        text_flops: FLOPs spent on the answer's text.
        frames: The frames with the most attention, best first; empty if the engine cannot read attention.
        shares: For a structured question, the probability of each allowed answer, in the question's order.
            The answer's p(yes) is then that of the question's condition, and its two logits are the
            logarithms of p(yes) and 1 - p(yes).
    """

    question: str
    p_yes: float
    yes_logit: float
    no_logit: float
    text: str | None = None
    tokens: int = 0
    text_flops: int = 0
    frames: tuple[AttendedFrame, ...] = ()
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """A frame on which an answer is based: its stream time, and its share of the answer's attention (mean
    over layers and heads)."""

    time_us: int
    share: float


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one window. Rows include text rows (labels and wrapping).

    Attributes:
        tokens_kept: Rows of the window, without questions; the sum of `tokens_reused`, `tokens_refreshed` and
            `tokens_new`.
        question_tokens: Rows of the questions.
        token_layers: Rows computed, summed over layers; the measure by which policies are compared.
        kv_bytes: Bytes of KV that the engine keeps for the window.
        flops: FLOPs (2 per multiply-add) by stage: "linear" (projections and MLP of window rows), "attention"
            (of window rows, over the rows they see), "place" (rotating K into the window), "select" (choosing
            rows), "questions" (everything for the questions), "describe" (writing text).
        row_flops: FLOPs of one row over all layers.
        pair_flops: FLOPs, over all layers, of one row attending to one other row.
        seconds: The window's part of its batch's measured time; 0 if it was not measured.
    """

    tokens_kept: int = 0
    tokens_reused: int = 0
    tokens_refreshed: int = 0
    tokens_new: int = 0
    question_tokens: int = 0
    token_layers: int = 0
    kv_bytes: int = 0
    flops: Mapping[str, int] = field(default_factory=dict)
    row_flops: int = 0
    pair_flops: int = 0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        """Add the costs of two prompts to the same model."""
        stages = {*self.flops, *other.flops}
        return Cost(
            self.tokens_kept + other.tokens_kept,
            self.tokens_reused + other.tokens_reused,
            self.tokens_refreshed + other.tokens_refreshed,
            self.tokens_new + other.tokens_new,
            self.question_tokens + other.question_tokens,
            self.token_layers + other.token_layers,
            self.kv_bytes + other.kv_bytes,
            {stage: self.flops.get(stage, 0) + other.flops.get(stage, 0) for stage in sorted(stages)},
            other.row_flops,
            other.pair_flops,
            self.seconds + other.seconds,
        )

    @property
    def total_flops(self) -> int:
        """All stages together."""
        return sum(self.flops.values())

    def full_flops(self, rows: int) -> int:
        """FLOPs to compute a whole window of `rows` rows on the same model, without questions."""
        return rows * self.row_flops + causal_pairs(rows) * self.pair_flops


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """One window of one stream: its plan, the plan's blocks (only those with rows to compute are required),
    and the questions to ask at its end.

    With `keep` False (only for windows computed in full), the window's KV is dropped after the questions, and
    the engine's KV of the stream does not change. This is for audits, and for fleets that only recompute.
    """

    plan: WindowPlan
    blocks: Sequence[StrideBlock]
    questions: Sequence[Question] = ()
    keep: bool = True


@dataclass(frozen=True, slots=True)
class WindowAnswer:
    """The outcome of one request: answers in the order of its questions, or the error instead of them."""

    stream: str
    window: int
    answers: tuple[Answer, ...] = ()
    cost: Cost = field(default_factory=Cost)
    error: EngineError | None = None

    def unwrap(self) -> WindowAnswer:
        """Return this answer, or raise its error."""
        if self.error is not None:
            raise self.error
        return self


@dataclass(frozen=True, slots=True)
class StreamMemory:
    """What the engine keeps for a stream: last window, rows, KV bytes on the device and on the disk tier."""

    stream: str
    window: int
    rows: int
    device_bytes: int
    spilled_bytes: int


@runtime_checkable
class Engine(Protocol):
    """Executes window plans. Invalid requests and failing streams are returned as `WindowAnswer.error`; a
    batch never fails as a whole because of one stream. Only a device that failed permanently raises
    `DeviceError`."""

    @property
    def layout(self) -> Layout:
        """The prompt layout of the loaded checkpoint, which plans must use."""
        ...

    @property
    def kv_budget(self) -> KvBudget:
        """Bytes of KV that streams hold between windows, and their limit."""
        ...

    def run(self, requests: Sequence[WindowRequest]) -> list[WindowAnswer]:
        """Execute windows of several streams, one per stream, as one batch; return answers in request order.

        Raises:
            DeviceError: The device failed permanently; every later call raises this too.
        """
        ...

    def held(self, stream: str) -> str | None:
        """The digest of the plan whose KV the engine has for a stream; None: the stream's next window must be
        a key window."""
        ...

    def close_stream(self, stream: str) -> None:
        """Free everything that a stream holds; unknown streams are ignored."""
        ...

    def memory(self) -> list[StreamMemory]:
        """List what is kept for every stream, least recently used first."""
        ...

    def close(self) -> None:
        """Free every stream and the model."""
        ...


class AskingEngine(Engine, Protocol):
    """An engine that answers questions about a window whose KV it still has.

    If a call fails, that KV does not change: the same call can be made again, and the next window is computed
    as if nobody had asked.
    """

    def ask(self, plan: WindowPlan, questions: Sequence[Question]) -> WindowAnswer:
        """Return p(yes) of questions about the window of `plan`, which must be the last one run for its
        stream.

        Raises:
            StreamLostError: The window's KV is no longer held.
            EngineError: The questions cannot be answered.
        """
        ...

    def write(
        self,
        plan: WindowPlan,
        question: str,
        settings: TextSettings,
        going: Callable[[], bool] = lambda: True,
    ) -> Generator[str, None, Cost]:
        """Yield the answer in words, piece by piece; the generator's result is its cost.

        Args:
            plan: The plan of the window that was run last for its stream.
            question: What to ask.
            settings: How the text is written.
            going: Called before every token; the text ends when it returns False.

        Raises:
            StreamLostError: The window's KV is no longer held.
            EngineError: The question cannot be answered.
        """
        ...
