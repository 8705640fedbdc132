"""Reads a memory for the layers of an answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from lookout.models.engines.transformers.memory.clock import clock
from lookout.past.memory import (
    FrameChoice,
    Predictor,
    Prefetcher,
    RetrievalSettings,
    Retrieved,
    Snapshot,
    Span,
    Transfer,
    retrieve,
    token_budget,
)
from lookout.past.memory.types import Ints

TOGETHER = 1 << 20
"""Most bytes of slabs that are copied together before they are placed."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerContext:
    """The memory rows of one layer.

    Attributes:
        parts: Keys (un-rotated) and values [kv_heads, some, d], read once and in order.
        frames: int64 [n], the frame of each row of all parts; `places` int64 [axes, n], the row's place in
            the frame.
        tokens: How many of the first rows are tokens; the other rows are representatives, which stand for
            several tokens.
    """

    parts: Iterable[tuple[torch.Tensor, torch.Tensor]]
    frames: Ints
    places: Ints
    tokens: int


Observer = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, float], None]
"""Called with each layer's rotated queries [heads, rows, d], rotated keys [kv_heads, n, d] (prefix, window,
memory, question), additive mask [rows, n] and scaling; for measurements."""


class Reader(Protocol):
    """Chooses what each layer of an answer reads of the past."""

    def read(self, layer: int, query: torch.Tensor) -> LayerContext | None:
        """Return the rows for one layer, given its mean query [width]; None: the layer reads nothing."""
        ...

    def foresee(self, layer: int, query: torch.Tensor) -> None:
        """Prefetch for a later layer, given a prediction of its mean query [width]."""
        ...


@dataclass(slots=True)
class LayerTrace:
    """What one layer of one answer read and moved, and how long it took in seconds."""

    tokens: int = 0
    clusters: int = 0
    representatives: int = 0
    scored: int = 0
    retrieve_s: float = 0.0
    move_s: float = 0.0
    attend_s: float = 0.0
    ids: tuple[int, ...] = ()
    transfer: Transfer = field(default_factory=Transfer)


class ClusterReader:
    """Two-stage retrieval over a snapshot; clusters are moved to the device, ahead of time if predicted."""

    def __init__(
        self,
        snapshot: Snapshot,
        settings: RetrievalSettings,
        prefetcher: Prefetcher,
        traces: Sequence[LayerTrace],
        *,
        predictor: Predictor = Predictor.NONE,
        span: FrameChoice | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.snapshot, self.settings, self.prefetcher = snapshot, settings, prefetcher
        self.traces, self.predictor = traces, predictor
        self.span = span or Span()
        self.device = device or torch.device("cpu")
        self.budget = token_budget(snapshot, settings)

    def foresee(self, layer: int, query: torch.Tensor) -> None:
        """Start moving what a later layer will probably need."""
        self.prefetcher.foresee(layer, self._choose(layer, query).clusters)

    def _choose(self, layer: int, query: torch.Tensor) -> Retrieved:
        return retrieve(
            self.snapshot, layer, query.cpu(), self.budget, settings=self.settings, span=self.span
        )

    def read(self, layer: int, query: torch.Tensor) -> LayerContext | None:
        """Choose clusters with the layer's own query, move those that are missing, and return their rows in
        temporal order."""
        trace, begun = self.traces[layer], clock()
        choice = self._choose(layer, query)
        chosen_at = clock()
        data, moved = self.prefetcher.complete(layer, choice.clusters, max(1, choice.scored))
        trace.retrieve_s, trace.move_s = chosen_at - begun, clock() - chosen_at
        trace.tokens, trace.clusters, trace.scored = choice.tokens, len(choice.clusters), choice.scored
        trace.representatives, trace.transfer = len(choice.representatives), moved
        trace.ids = tuple(cluster.id for cluster in choice.clusters)
        return context_of(self.snapshot, choice, data, self.device)


def context_of(
    snapshot: Snapshot,
    found: Retrieved,
    data: Sequence[torch.Tensor],
    device: torch.device,
) -> LayerContext | None:
    """Build one layer's memory rows from retrieved slabs and representatives."""
    stands = found.representatives
    if not data and not len(stands):
        return None
    heads, size = snapshot.prefix.keys.shape[1], snapshot.prefix.keys.shape[3]
    dtype = snapshot.prefix.keys.dtype
    tokens = np.concatenate([np.zeros(0, np.int64), *(cluster.slab.tokens for cluster in found.clusters)])
    frames, places = snapshot.lookup(tokens)
    if found.rows is not None:
        frames, places = frames[found.rows], places[:, found.rows]
    parts: Iterable[tuple[torch.Tensor, torch.Tensor]] = parts_of(data, found.rows)
    if len(stands):
        keys, values = (x.to(device, dtype).view(-1, heads, size) for x in (stands.keys, stands.values))
        parts = itertools.chain(parts, [(keys.transpose(0, 1), values.transpose(0, 1))])
    return LayerContext(
        parts=parts,
        frames=np.concatenate([frames, stands.frames]),
        places=np.concatenate([places, stands.places], 1),
        tokens=len(frames),
    )


def parts_of(
    slabs: Sequence[torch.Tensor], inside: np.ndarray | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield keys and values [kv_heads, some, d] of the rows of slabs [rows, 2, kv_heads, d] that are
    `inside`.

    Small slabs are joined, but only as many as stay in a CPU's cache until they are placed.
    """
    offset = 0
    for group in _grouped(slabs):
        rows = torch.cat(group) if len(group) > 1 else group[0]
        if inside is not None:
            inner = np.flatnonzero(inside[offset : offset + len(rows)])
            offset += len(rows)
            rows = rows[torch.from_numpy(inner).to(rows.device)]
        yield rows[:, 0].transpose(0, 1), rows[:, 1].transpose(0, 1)


def _grouped(slabs: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    group: list[torch.Tensor] = []
    size = 0
    for slab in slabs:
        if group and size + slab.nbytes > TOGETHER:
            yield group
            group, size = [], 0
        group.append(slab)
        size += slab.nbytes
    if group:
        yield group
