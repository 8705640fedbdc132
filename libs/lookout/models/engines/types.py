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
    """The checkpoint's family, attention or position scaling is not one the engine runs."""


class PositionError(EngineError):
    """The window or a question needs positions beyond the model's range."""


class PlanError(EngineError):
    """The plan does not fit the model, its blocks, or the block table."""


class StreamLostError(EngineError):
    """The engine does not hold the KV that the plan continues: plan a key window. The same plan would be
    refused again."""


class StreamFailedError(StreamLostError):
    """A stream failed while it was computed; its KV is gone, its neighbours' is untouched."""


class MemoryBudgetError(EngineError):
    """The window alone exceeds the engine's byte budget."""


class DeviceError(EngineError):
    """The device failed permanently, or has no memory left for a single window: this process computes nothing
    any more. `Engine.run` raises it; it is no answer of any stream."""


@dataclass(frozen=True, slots=True)
class Question:
    """One standing question. `describe` > 0 asks for up to so many tokens of text if the answer is Yes; one
    with a list of allowed answers (`lookout.structured`) gets no text."""

    id: str
    text: str
    describe: int = 0


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How an answer in words is written.

    Attributes:
        tokens: At most so many.
        temperature: Of the draw; 0: the likeliest token every time.
        seed: Of the draw.
        stop: The text ends before the first of these strings.
        schema: A JSON schema that the text follows; vLLM alone can.
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
    """A frame of a window that an answer looks at: its block and number there, and the share of the answer's
    attention on its most attended visual row (mean over layers and heads)."""

    block: int
    frame: int
    share: float


@dataclass(frozen=True, slots=True)
class Answer:
    """p(yes) of one question: softmax of the Yes logit against the No logit at the first answer token.
    `tokens` is the length of the question's suffix, the rows it cost; `text_flops` is what its text cost.
    `frames` are those with most attention, best first; empty where the engine does not see attention.
    `shares`: of a structured question the probability of each allowed answer, in their order. Its p(yes) is
    that of its condition, and its two logits are the logarithms of p(yes) and of the rest."""

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
    """What one window cost. Rows include text rows (labels and wrapping); `tokens_*` count rows of the
    window, questions apart.

    `token_layers` is the sum over layers of the rows computed there (the footing on which policies are
    compared); `flops` counts 2 per multiply-add, by stage: "linear" (projections and MLP of window rows),
    "attention" (of window rows, over the rows they see), "place" (rotating K into the window), "select"
    (choosing rows), "questions" (everything the questions cost), "describe". `row_flops` and `pair_flops`
    are what a row, and a pair of rows of which one sees the other, cost over all layers. `seconds` is the
    window's part of its batch's measured time; 0 where nobody measures.
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
        """What two prompts of one model cost together."""
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
        """FLOPs of a window of `rows` rows on the same model, all of them computed, questions apart."""
        return rows * self.row_flops + causal_pairs(rows) * self.pair_flops


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """One window of one stream: its plan, the blocks the plan names (those with rows to compute
    suffice), and the questions to ask at its end. With `keep` False (whole windows only) the KV is
    thrown away with the questions, and what the engine holds of the stream stays as it is: audits,
    and fleets that only recompute."""

    plan: WindowPlan
    blocks: Sequence[StrideBlock]
    questions: Sequence[Question] = ()
    keep: bool = True


@dataclass(frozen=True, slots=True)
class WindowAnswer:
    """The outcome of one request: answers in the order of its questions, or the error that took their
    place."""

    stream: str
    window: int
    answers: tuple[Answer, ...] = ()
    cost: Cost = field(default_factory=Cost)
    error: EngineError | None = None

    def unwrap(self) -> WindowAnswer:
        """This answer, or its error raised."""
        if self.error is not None:
            raise self.error
        return self


@dataclass(frozen=True, slots=True)
class StreamMemory:
    """What one stream holds: KV bytes on the device, bytes spilled to the disk tier, rows, last window."""

    stream: str
    window: int
    rows: int
    device_bytes: int
    spilled_bytes: int


@runtime_checkable
class Engine(Protocol):
    """Executes window plans. Bad requests and failing streams come back as `WindowAnswer.error`; a batch
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
        """Free everything a stream holds; unknown streams are no error."""
        ...

    def memory(self) -> list[StreamMemory]:
        """What every stream holds, least recently used first."""
        ...

    def close(self) -> None:
        """Free every stream and the model."""
        ...


class AskingEngine(Engine, Protocol):
    """An engine that answers over a window that it holds. Nothing that it holds changes, whatever fails: the
    same call can be made again, and the window's successor is computed as if nobody had asked."""

    def ask(self, plan: WindowPlan, questions: Sequence[Question]) -> WindowAnswer:
        """p(yes) of questions about the window of `plan`, which was run last for its stream.

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
        """The answer in words, piece by piece; what it cost is the generator's result.

        Args:
            plan: Of the window that was run last for its stream.
            question: What to ask.
            settings: How it is written.
            going: Asked before every token; the text ends where it says no.

        Raises:
            StreamLostError: Its KV is no longer held.
            EngineError: The question cannot be answered.
        """
        ...
