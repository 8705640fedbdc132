"""Admission to an engine: decides which requests run together, and whose KV makes room for them. Both engines
use it.

Every rejection happens here, before any KV moves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from lookout.models.engines.asked import AskedQuestion, Suffix, in_order, tokens_of_question
from lookout.models.engines.budget import KvBudget
from lookout.models.engines.checks import check_request
from lookout.models.engines.types import (
    EngineError,
    MemoryBudgetError,
    PlanError,
    StreamLostError,
    WindowAnswer,
    WindowRequest,
)
from lookout.models.windows import Layout, WindowPlan


class HeldKv(Protocol):
    """The KV that an engine holds for a stream."""

    @property
    def window(self) -> int:
        """Number of the window that the rows belong to."""
        ...

    @property
    def digest(self) -> str:
        """The digest of the plan of `window`; empty while a window is being computed and after a window has
        failed."""
        ...

    @property
    def rows(self) -> int:
        """Number of rows held."""
        ...


class Work(Protocol):
    """An admitted request."""

    index: int


W = TypeVar("W", bound=Work)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The limits of a loaded model.

    Attributes:
        layout: Prompt layout that plans must use.
        hidden: Width of an embedding.
        deepstack: DeepStack levels of the model.
        positions: First position beyond the model's range.
        rows: Rows of a window with a question that fit in the engine's block table; None: no limit.
        layerwise: Whether different layers may compute different rows (CacheBlend, VLCache).
    """

    layout: Layout
    hidden: int
    deepstack: int
    positions: int
    rows: int | None = None
    layerwise: bool = True


class Admission:
    """The checks that both engines make before a request runs.

    Args:
        limits: The model's limits.
        tokenizer: The checkpoint's tokenizer.
        budget: Budget of the KV that streams hold.
    """

    def __init__(self, limits: ModelLimits, tokenizer: Any, budget: KvBudget) -> None:
        self.limits = limits
        self.budget = budget
        self._tokenizer = tokenizer
        self.asked = lru_cache(maxsize=4096)(self._asked)

    def questions(self, request: WindowRequest) -> list[AskedQuestion]:
        """Return a request's questions as tokens.

        Raises:
            PlanError: A question cannot be asked.
        """
        return [self.asked(question.text) for question in request.questions]

    def suffixes(self, request: WindowRequest) -> list[Suffix]:
        """Return the token ids of a request's questions (`in_order`).

        Raises:
            PlanError: A question cannot be asked.
        """
        return in_order(self.questions(request))

    def check(self, request: WindowRequest, suffixes: Sequence[Suffix], held: HeldKv | None) -> None:
        """Check that a request can run on this model and with its stream's KV (`held`).

        Raises:
            PlanError: The plan does not fit the model, the request's blocks, or the block table.
            PositionError: The window or a question needs positions beyond the model's range.
            StreamLostError: The plan continues KV that is not held.
        """
        limits, plan = self.limits, request.plan
        check_request(
            request,
            [len(suffix) for suffix in suffixes],
            layout=limits.layout,
            hidden=limits.hidden,
            deepstack=limits.deepstack,
            limit=limits.positions,
        )
        where = f"{plan.stream}: window {plan.window}"
        if not limits.layerwise and (plan.layers is not None or plan.select is not None):
            raise PlanError(
                f"{where}: policy {plan.policy.value!r} computes different rows in different layers, which "
                "vLLM's block table cannot hold; run it on the transformers engine"
            )
        describe = max((question.describe for question in request.questions), default=0)
        rows = plan.rows + max(map(len, suffixes), default=0) + describe + 1
        if limits.rows is not None and rows > limits.rows:
            raise PlanError(
                f"{where} and a question take {rows} rows, but the block table has room for {limits.rows}: "
                "raise max_rows or kv_cache_bytes, or shorten the window"
            )
        # The held KV is checked last. A plan that can never run must not be reported as a lost stream,
        # because the caller would then plan a key window and run it again.
        if plan.parent is None:
            return
        if held is None or held.digest != plan.parent:
            has = f"the KV of window {held.window}" if held is not None and held.digest else "no KV"
            raise StreamLostError(
                f"{where} continues {plan.parent}, but the engine holds {has} of this stream: plan a key "
                "window"
            )
        if int(plan.source.max()) >= held.rows:
            raise PlanError(f"{where} reuses rows that its parent does not have")

    def reserve(self, plan: WindowPlan, name: str, size: int, running: Collection[str]) -> list[str] | None:
        """Reserve `size` bytes of KV under `name` for a window.

        Returns:
            The streams whose KV must be evicted; None if the window must wait for those in `running`.

        Raises:
            MemoryBudgetError: The window alone exceeds the budget.
        """
        if size > self.budget.limit:
            raise MemoryBudgetError(
                f"{plan.stream}: window {plan.window} needs {size} bytes of KV; the budget is "
                f"{self.budget.limit}: raise it, or shorten the window"
            )
        return self.budget.admit(name, size, running)

    def _asked(self, text: str) -> AskedQuestion:
        return tokens_of_question(text, self._tokenizer, self.limits.layout)


def run_batch(
    requests: Sequence[WindowRequest],
    admit: Callable[[int, WindowRequest, Sequence[W]], W | None],
    execute: Callable[[Sequence[W]], Sequence[WindowAnswer]],
) -> list[WindowAnswer]:
    """Admit and execute a batch; requests that do not fit together run in later rounds.

    Args:
        requests: Windows of several streams, one per stream.
        admit: Admits a request together with the work admitted so far; None if it has to wait.
        execute: Runs admitted work and returns the answers in its order.

    Returns:
        Answers in the order of requests; a rejected request gets an answer with its error.
    """
    answers: list[WindowAnswer | None] = [None] * len(requests)
    waiting: list[tuple[int, WindowRequest]] = []
    streams: set[str] = set()
    for index, request in enumerate(requests):
        stream = request.plan.stream
        # Two windows of one stream would read and write the same KV in one pass.
        if stream in streams:
            answers[index] = refused(
                request, PlanError(f"{stream}: a batch may have only one window per stream")
            )
        else:
            waiting.append((index, request))
        streams.add(stream)
    while waiting:
        # Each round admits at least one request: `reserve` lets one wait only for work of the same round.
        works: list[W] = []
        later: list[tuple[int, WindowRequest]] = []
        for index, request in waiting:
            try:
                work = admit(index, request, works)
            except EngineError as error:
                answers[index] = refused(request, error)
                continue
            if work is None:
                later.append((index, request))
            else:
                works.append(work)
        for work, answer in zip(works, execute(works), strict=True):
            answers[work.index] = answer
        waiting = later
    return [answer for answer in answers if answer is not None]


def refused(request: WindowRequest, error: EngineError) -> WindowAnswer:
    """Return an answer that has only an error."""
    return WindowAnswer(request.plan.stream, request.plan.window, error=error)
