"""The interface of every engine: window requests in, answers with their cost out."""

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
    """An engine cannot do what it was asked to; the message names the stream, the cause and the remedy."""


class UnsupportedModelError(EngineError):
    """The engine does not support the checkpoint's family, attention or position scaling."""


class PositionError(EngineError):
    """The window or a question needs positions beyond the model's range."""


class PlanError(EngineError):
    """The plan does not fit the model, its blocks, or the block table."""


class StreamLostError(EngineError):
    """The engine does not hold the KV that the plan continues: plan a key window. The same plan would fail
    again."""


class StreamFailedError(StreamLostError):
    """A stream failed while it was computed; its KV is dropped, that of other streams is untouched."""


class MemoryBudgetError(EngineError):
    """The window alone exceeds the engine's byte budget."""


class DeviceError(EngineError):
    """The device failed permanently, or has no memory for a single window: this process can compute nothing
    more. `Engine.run` raises it; it never comes as the answer of a stream."""


@dataclass(frozen=True, slots=True)
class Question:
    """One standing question. `describe` > 0 asks for up to that many tokens of text if the answer is Yes; a
    question with a list of allowed answers (`lookout.structured`) gets no text."""

    id: str
    text: str
    describe: int = 0


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How an answer in words is written.

    Attributes:
        tokens: Maximum number of tokens.
        temperature: Temperature of sampling; 0: the likeliest token every time.
        seed: Seed of sampling.
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
            raise PlanError(f"tokens={self.tokens} of a text must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise PlanError(f"temperature={self.temperature} of a text must be 0 or above")


@dataclass(frozen=True, slots=True)
class AttendedFrame:
    """A frame of a window that an answer attends to: its block, its number in the block, and the share of the
    answer's attention on its most attended visual row (mean over layers and heads)."""

    block: int
    frame: int
    share: float


@dataclass(frozen=True, slots=True)
class Answer:
    """p(yes) of one question: softmax of the Yes logit against the No logit at the first answer token.

    Attributes:
        tokens: Length of the question's suffixes, the rows that the question cost.
        text_flops: FLOPs spent on its text.
        frames: The frames with most attention, best first; empty if the engine does not see attention.
        shares: For a structured question, the probability of each allowed answer, in their order. Its p(yes)
            is that of its condition, and its two logits are the logarithms of p(yes) and 1 - p(yes).
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
    """A frame that an answer is based on: its stream time, and its share of the answer's attention (mean over
    layers and heads)."""

    time_us: int
    share: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What one window cost. Rows include text rows (labels and wrapping).

    Attributes:
        tokens_kept: Rows of the window, without questions; `tokens_reused`, `tokens_refreshed` and
            `tokens_new` are its parts.
        question_tokens: Rows of the questions.
        token_layers: Rows computed, summed over layers; policies are compared by it.
        kv_bytes: Bytes of KV that the engine keeps for the window.
        flops: 2 per multiply-add, by stage: "linear" (projections and MLP of window rows), "attention" (of
            window rows, over the rows they see), "place" (rotating K into the window), "select" (choosing
            rows), "questions" (everything the questions cost), "describe" (writing text).
        row_flops: FLOPs of one row over all layers.
        pair_flops: FLOPs over all layers of a pair of rows, one of which sees the other.
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
        """Add the costs of two prompts of one model."""
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
        """FLOPs of computing a whole window of `rows` rows on the same model, without questions."""
        return rows * self.row_flops + causal_pairs(rows) * self.pair_flops


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """One window of one stream: its plan, the plan's blocks (those with rows to compute suffice), and the
    questions to ask at its end.

    With `keep` False (only for windows computed in full) the KV is dropped after the questions, and what the
    engine holds of the stream stays as it is: for audits, and for fleets that only recompute.
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
    """What one stream holds: its last window, rows, KV bytes on the device and bytes on the disk tier."""

    stream: str
    window: int
    rows: int
    device_bytes: int
    spilled_bytes: int


@runtime_checkable
class Engine(Protocol):
    """Executes window plans. Invalid requests and failing streams come back as `WindowAnswer.error`; a batch
    never fails as a whole because of one stream. Only a device that failed permanently raises
    `DeviceError`."""

    @property
    def layout(self) -> Layout:
        """The prompt layout of the loaded checkpoint; plans are made with it."""
        ...

    @property
    def kv_budget(self) -> KvBudget:
        """Bytes of KV that streams hold between windows, and their limit."""
        ...

    def run(self, requests: Sequence[WindowRequest]) -> list[WindowAnswer]:
        """Execute one window of each of several streams as one batch; answers in the order of requests.

        Raises:
            DeviceError: The device failed permanently; so does every later call.
        """
        ...

    def held(self, stream: str) -> str | None:
        """The digest of the plan whose KV the engine holds for a stream; None: the next window of the stream
        must be a key window."""
        ...

    def close_stream(self, stream: str) -> None:
        """Free everything that a stream holds; unknown streams are ignored."""
        ...

    def memory(self) -> list[StreamMemory]:
        """List what every stream holds, least recently used first."""
        ...

    def close(self) -> None:
        """Free every stream and the model."""
        ...


class AskingEngine(Engine, Protocol):
    """An engine that answers questions over a window that it holds.

    Whatever fails, nothing that it holds changes: the same call can be made again, and the next window is
    computed as if nobody had asked.
    """

    def ask(self, plan: WindowPlan, questions: Sequence[Question]) -> WindowAnswer:
        """Return p(yes) of questions about the window of `plan`, which must be the last one run for its
        stream.

        Raises:
            StreamLostError: Its KV is no longer held.
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
            plan: The window that was run last for its stream.
            question: What to ask.
            settings: How the text is written.
            going: Called before every token; the text ends when it returns False.

        Raises:
            StreamLostError: Its KV is no longer held.
            EngineError: The question cannot be answered.
        """
        ...
