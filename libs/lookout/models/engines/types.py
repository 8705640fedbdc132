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
    """The engine cannot do what was requested. The message names the stream, the cause and the remedy."""


class UnsupportedModelError(EngineError):
    """The engine does not support the checkpoint's family, attention or position scaling."""


class PositionError(EngineError):
    """The window or a question needs positions beyond the model's range."""


class PlanError(EngineError):
    """The plan does not fit the model, the request's blocks, or the block table."""


class StreamLostError(EngineError):
    """The engine no longer has the KV that the plan continues. Plan a key window, because the same plan would
    fail again."""


class StreamFailedError(StreamLostError):
    """A stream failed while it was computed. Its KV is dropped. Other streams are not affected."""


class MemoryBudgetError(EngineError):
    """The window alone exceeds the engine's byte budget."""


class DeviceError(EngineError):
    """The device failed permanently, or has too little memory for a single window, so this process cannot
    compute any more. `Engine.run` raises this error; it never returns it in a stream's answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question to ask about a window.

    Attributes:
        id: The question's id.
        text: The question.
        describe: Maximum number of tokens of the description that is written if the answer is yes; 0: no
            description. A question that lists its answers (`lookout.structured`) never gets one.
    """

    id: str
    text: str
    describe: int = 0


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How an answer in words is written.

    Attributes:
        tokens: Maximum number of tokens.
        temperature: Sampling temperature; 0: always choose the most likely token.
        seed: Sampling seed.
        stop: The text ends before the first occurrence of any of these strings.
        schema: A JSON schema that the text must follow, only with vLLM; None: any text.
    """

    tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise PlanError(f"tokens={self.tokens}: give at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise PlanError(f"temperature={self.temperature}: give a finite number of at least 0")


@dataclass(frozen=True, slots=True)
class AttendedFrame:
    """A frame of a window to which an answer attends.

    Attributes:
        block: Index of the frame's block.
        frame: Number of the frame in the block.
        share: Share of the answer's attention on the frame's most attended visual row, as a mean over layers
            and heads.
    """

    block: int
    frame: int
    share: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question.

    Attributes:
        question: Id of the question.
        p_yes: Probability of yes, from a softmax of the logits of Yes and No at the first token of the
            answer. For a structured question: the probability that its condition holds.
        yes_logit: Logit of Yes. For a structured question: the logarithm of p(yes).
        no_logit: Logit of No. For a structured question: the logarithm of 1 - p(yes).
        text: The description; None if there is none.
        tokens: Number of rows that the question added to the window.
        text_flops: FLOPs to write `text`.
        frames: The frames with the most attention, best first; empty if the engine cannot read attention.
        shares: For a structured question, the probability of each allowed answer, in the question's order;
            else empty.
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
    """A frame to which an answer attends: its stream time in microseconds, and its share of the answer's
    attention, as a mean over layers and heads."""

    time_us: int
    share: float


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one window. Rows include text rows, such as labels.

    Attributes:
        tokens_kept: Number of rows of the window without questions, the sum of the following three.
        tokens_reused: Number of rows whose KV was reused.
        tokens_refreshed: Number of rows whose KV existed but was recomputed.
        tokens_new: Number of rows that were new.
        question_tokens: Number of rows of the questions.
        token_layers: Number of rows computed, summed over layers, by which policies are compared.
        kv_bytes: Bytes of KV that the engine keeps for the window.
        flops: FLOPs (2 per multiply-add) by stage: "linear" (projections and MLP of window rows), "attention"
            (of window rows, over the rows they see), "place" (rotating K into the window), "select" (choosing
            rows), "questions" (everything for the questions), "describe" (writing text).
        row_flops: FLOPs of one row over all layers.
        pair_flops: FLOPs, over all layers, of one row attending to one other row.
        seconds: The window's share of its batch's measured time; 0 if the time was not measured.
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
        """Return the sum of the costs of two prompts to the same model."""
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
        """FLOPs of all stages together."""
        return sum(self.flops.values())

    def full_flops(self, rows: int) -> int:
        """Return the FLOPs to compute a whole window of `rows` rows on the same model, without questions."""
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
        """Return the digest of the plan whose KV the engine has for a stream. None: the engine has none, so
        the stream's next window must be a key window."""
        ...

    def close_stream(self, stream: str) -> None:
        """Free a stream's KV. Unknown streams are ignored."""
        ...

    def memory(self) -> list[StreamMemory]:
        """Return what is kept for every stream, least recently used first."""
        ...

    def close(self) -> None:
        """Free every stream and the model."""
        ...


class AskingEngine(Engine, Protocol):
    """An engine that answers questions about a window whose KV it still has.

    If a call fails, the KV does not change. The same call can be made again, and the next window is computed
    as if no question had been asked.
    """

    def ask(self, plan: WindowPlan, questions: Sequence[Question]) -> WindowAnswer:
        """Return the answers to questions about the window of `plan`, which must be the last plan that was
        run for its stream.

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
        """Yield the answer in words, piece by piece. The generator returns the cost.

        Args:
            plan: The last plan that was run for its stream.
            question: The question.
            settings: How the text is written.
            going: Called before every token. The text ends when it returns False.

        Raises:
            StreamLostError: The window's KV is no longer held.
            EngineError: The question cannot be answered.
        """
        ...
