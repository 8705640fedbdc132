"""Computes the queries with which a question searches the past, before any of the past is read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from lookout.models.engines.transformers.engine import TransformersEngine
from lookout.models.engines.transformers.memory.attention import AskPass, _LayerState, mean_query, run_pass
from lookout.models.engines.transformers.memory.layout import AskLayout
from lookout.models.engines.transformers.memory.reading import LayerContext, LayerTrace
from lookout.past.memory import FrameChoice, Slots
from lookout.past.memory.spans import EVERYTHING
from lookout.past.memory.types import Ints, Prefix


@dataclass(frozen=True, slots=True, eq=False)
class _Nothing:
    """An empty past (`Readable`), which is also its own reader (`Reader`)."""

    prefix: Prefix
    step: Ints
    times_us: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    window: tuple[()] = ()
    clustered: bool = False
    covered_from_us: int | None = None

    @property
    def extent(self) -> Ints:
        return self.step

    def held_frames(self) -> Ints:
        return self.times_us

    def choice(self, since_us: int | None, until_us: int | None) -> FrameChoice:
        return EVERYTHING

    def read(self, layer: int, query: torch.Tensor) -> LayerContext | None:
        return None

    def foresee(self, layer: int, query: torch.Tensor) -> None:
        return


@dataclass(slots=True, eq=False)
class _QueryPass(AskPass):
    """Runs prefix and question, and keeps each layer's mean query over the question's rows."""

    skip: int = 0
    queries: list[torch.Tensor] = field(default_factory=list)

    def place(self, layer: int, query: torch.Tensor) -> _LayerState:
        self.queries.append(mean_query(query[:, self.skip :], self.model.kv_heads))
        return AskPass.place(self, layer, query)


def question_queries(engine: TransformersEngine, question: str) -> torch.Tensor:
    """Return each layer's query for the first stage of retrieval, computed as if there were no past.

    Args:
        engine: Provides the model and its prompt layout; its streams are not touched.
        question: The question.

    Returns:
        float32 [layers, width], un-rotated, on the host: the mean over the question's rows and over the query
            heads of each KV head.
    """
    model, layout = engine.model, engine.layout
    prefix, ids = list(layout.prefix), engine.suffix(question)
    axes = layout.positions.axes
    none = torch.zeros(
        len(model.layers), model.kv_heads, 0, model.head_dim, dtype=model.dtype, device=model.device
    )
    places, step = np.zeros((axes, 0), np.int64), np.ones(axes, np.int64)
    nothing = _Nothing(Prefix(places, none, none), step)
    empty = np.zeros(0, np.int64)
    origin = np.zeros(axes, np.int64)
    with engine.in_turn():
        ask = _QueryPass(
            model,
            nothing,
            AskLayout(Slots(origin, step, 0), places, empty, empty, places, 0),
            nothing,
            [LayerTrace() for _ in model.layers],
            len(prefix) + len(ids),
            skip=len(prefix),
        )
        run_pass(model, ask, [*prefix, *ids], 0)
    return torch.stack(ask.queries).float().cpu()
