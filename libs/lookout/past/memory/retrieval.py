"""Chooses the clusters that an answer reads, in two stages within a token budget.

Optionally, representatives stand for the clusters that are not retrieved. Then every token of the memory
counts exactly once in each layer: it is retrieved, or its cluster's mean represents it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch

from lookout.past.memory.clusters import Cluster
from lookout.past.memory.errors import HistoryError
from lookout.past.memory.history import LayerIndex, Snapshot
from lookout.past.memory.spans import EVERYTHING, FrameChoice, Span
from lookout.past.memory.statistics import scores_of
from lookout.past.memory.types import Ints

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetrievalSettings:
    """How much an answer reads.

    Attributes:
        frames: the frame budget. Multiplied by the mean number of tokens per frame, it is the token budget of
            each layer.
        span: number of frame slots whose positions the memory uses, the same in all layers.
        breadth: the first stage chooses visual clusters until they have this many times the token budget.
        whole: share of the budget that is filled with all clusters of the best visual clusters. The rest goes
            to the best semantic clusters in any chosen visual cluster. The paper has 0.
        representatives: whether clusters that are not retrieved have representatives, as in the paper.
    """

    frames: int = 64
    span: int = 32
    breadth: float = 8.0
    whole: float = 0.75
    representatives: bool = False

    def __post_init__(self) -> None:
        if self.frames < 0 or self.span < 1 or self.breadth < 1:
            raise HistoryError(
                f"retrieval settings: frames={self.frames}, span={self.span}, breadth={self.breadth}: "
                "frames must be at least 0, and span and breadth must be at least 1"
            )
        if not 0 <= self.whole <= 1:
            raise HistoryError(f"retrieval settings: whole={self.whole} must be between 0 and 1")


@dataclass(frozen=True, slots=True, eq=False)
class Representatives:
    """Means of clusters that are not retrieved, in temporal order.

    Attributes:
        keys: [n, width], mean keys.
        values: [n, width], mean values.
        counts: int64 [n], number of tokens that each mean represents.
        frames: int64 [n], mean frame number.
        places: int64 [axes, n], mean position inside the frame's slot.
    """

    keys: torch.Tensor
    values: torch.Tensor
    counts: torch.Tensor
    frames: Ints
    places: Ints

    def __len__(self) -> int:
        return len(self.frames)


@dataclass(frozen=True, slots=True, eq=False)
class Retrieved:
    """What one layer of an answer reads of the memory.

    Attributes:
        clusters: retrieved clusters in temporal order.
        representatives: representatives of the other clusters.
        rows: which of the clusters' tokens are read, bool [tokens of all clusters]; None: all tokens.
        scored: number of candidates compared with the query.
    """

    clusters: tuple[Cluster, ...]
    representatives: Representatives
    rows: np.ndarray | None = None
    scored: int = 0

    @property
    def tokens(self) -> int:
        """Number of tokens retrieved."""
        if self.rows is not None:
            return int(self.rows.sum())
        return sum(cluster.count for cluster in self.clusters)


def token_budget(snapshot: Snapshot, settings: RetrievalSettings) -> int:
    """Return the token budget of each layer: the frame budget times the mean number of tokens per frame."""
    return budget_of(len(snapshot.times_us), len(snapshot.token_frame), settings)


def budget_of(frames: int, tokens: int, settings: RetrievalSettings) -> int:
    """Return the `token_budget` of a memory with this many frames and tokens. Unless the frame budget is 0,
    it is at least one token."""
    if not settings.frames or not tokens:
        return 0
    return max(1, round(settings.frames * tokens / max(1, frames)))


def retrieve(  # noqa: PLR0917
    snapshot: Snapshot,
    layer: int,
    query: torch.Tensor,
    budget: int,
    settings: RetrievalSettings,
    span: FrameChoice = EVERYTHING,
) -> Retrieved:
    """Run two-stage retrieval in one layer (Mosaic, section V-C).

    Args:
        snapshot: the memory.
        layer: number of the layer.
        query: [width], mean over question tokens and each KV head's query heads; un-rotated.
        budget: number of tokens. Whole clusters are chosen in order of score while they fit; ties are decided
            by cluster id. Without representatives, a part of the next best cluster fills the rest.
        settings: breadth of the first stage, and whether there are representatives.
        span: frames that may be read.

    Returns:
        The clusters to fetch, and the representatives of all other clusters.
    """
    index = snapshot.layers[layer]
    q = query.to(index.keys.dtype)

    def opened(scenes: Ints) -> tuple[Candidates, Ints]:
        rows, home = index.table.rows(scenes)
        counts = index.table.counts[rows]
        if not span.whole:
            counts = _inside(index, rows, snapshot, span)
        candidates = Candidates(
            keys=index.table.keys.index_select(0, torch.from_numpy(rows)),
            counts=counts,
            ids=index.table.ids[rows],
            first=index.table.frames[0, rows],
            home=home,
        )
        return candidates, rows

    candidates, rows = first_stage(index, q, budget, settings, span, opened)
    picks = semantic_stage(candidates, q, budget, settings)
    clusters = index.clusters(rows[picks.places])
    read = None
    if not span.whole or picks.partial:
        sizes = [cluster.count for cluster in clusters]
        none = np.zeros(0, np.int64)
        tokens = np.concatenate([none, *(cluster.slab.tokens for cluster in clusters)])
        read = rows_read(span.holds(snapshot.lookup(tokens)[0]), sizes, picks.tokens)
    free = np.full(len(index.table.ids), settings.representatives)
    free[rows[picks.places]] = False
    stands = _representatives(index, np.flatnonzero(free), span)
    return Retrieved(clusters, stands, read, len(index.counts) + len(rows))


def _inside(index: LayerIndex, rows: Ints, snapshot: Snapshot, span: FrameChoice) -> Ints:
    """Return how many tokens of each cluster may be read, int64 [clusters]. `rows` are the clusters' rows in
    the table."""
    clusters = index.clusters(rows)
    return np.array(
        [int(span.holds(snapshot.lookup(cluster.slab.tokens)[0]).sum()) for cluster in clusters], np.int64
    )


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The clusters among which the second stage chooses, ordered by visual cluster.

    Attributes:
        keys: [clusters, width], mean raw key of each cluster.
        counts: int64 [clusters], number of each cluster's tokens that may be read.
        ids: int64 [clusters], unique ids, which decide ties.
        first: int64 [clusters], first frame of each cluster.
        home: int64 [clusters], each cluster's visual cluster, numbered by descending score.
    """

    keys: torch.Tensor
    counts: Ints
    ids: Ints
    first: Ints
    home: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Picks:
    """The clusters that a layer reads, in temporal order; ties are ordered by id.

    Attributes:
        places: int64 [clusters], indices among the candidates.
        tokens: int64 [clusters], how many tokens of each cluster are read.
        partial: Whether one of the clusters is read only in part.
    """

    places: Ints
    tokens: Ints
    partial: bool


def first_stage(  # noqa: PLR0917
    index: Scenes,
    query: torch.Tensor,
    budget: int,
    settings: RetrievalSettings,
    span: FrameChoice,
    opened: Callable[[Ints], tuple[Candidates, T]],
) -> tuple[Candidates, T]:
    """Return the candidates in the best visual clusters, and the data that `opened` returned with them.

    `opened` returns the candidates in some visual clusters, and any data about them. A visual cluster that
    overlaps the span may have few tokens inside it, so visual clusters are added until the budget can be
    filled or none is left.
    """
    tokens, total = budget * settings.breadth, int(index.counts.sum())
    while True:
        candidates, more = opened(visual_stage(index, query, tokens, span))
        if tokens >= total or not budget or int(candidates.counts.sum()) >= budget:
            return candidates, more
        tokens *= 2


def semantic_stage(
    candidates: Candidates, query: torch.Tensor, budget: int, settings: RetrievalSettings
) -> Picks:
    """Return the clusters to read.

    Whole clusters are chosen first. Without representatives, the next best cluster is read in part, so that
    exactly the budget is read if there are enough tokens.
    """
    counts, ids = candidates.counts, candidates.ids
    scores = scores_of(candidates.keys, query)
    readable = counts > 0
    by_scene = np.lexsort((ids, -scores, candidates.home))
    order: Ints = np.lexsort((ids, -scores))
    order = order[readable[order]]
    picks = _fill(by_scene[readable[by_scene]], counts, round(budget * settings.whole))
    untaken = readable.copy()
    untaken[picks] = False
    picks += _fill(order[untaken[order]], counts, budget - int(counts[picks].sum()))
    untaken[picks] = False
    room, rest = budget - int(counts[picks].sum()), order[untaken[order]]
    partial = bool(not settings.representatives and room and len(rest))
    places = np.array(picks, np.int64)
    tokens = counts[places]
    if partial:
        places, tokens = np.append(places, rest[0]), np.append(tokens, room)
    sorting = np.lexsort((ids[places], candidates.first[places]))
    return Picks(places[sorting], tokens[sorting], partial)


def rows_read(allowed: np.ndarray, sizes: Sequence[int], tokens: Ints) -> np.ndarray:
    """Return which rows of slabs to read, bool [rows of all slabs]. The chosen rows of a slab are evenly
    spaced among the allowed ones.

    Args:
        allowed: bool [rows of all slabs], which rows may be read.
        sizes: number of rows of each slab.
        tokens: int64 [slabs], number of rows to read of each slab.
    """
    out = np.zeros(len(allowed), dtype=bool)
    begin = 0
    for size, wanted in zip(sizes, tokens.tolist(), strict=True):
        rows = begin + np.flatnonzero(allowed[begin : begin + size])
        out[rows[np.arange(wanted) * len(rows) // max(1, wanted)]] = True
        begin += size
    return out


class Scenes(Protocol):
    """The visual clusters of a layer that the first stage compares (as in `LayerIndex`)."""

    @property
    def keys(self) -> torch.Tensor: ...

    @property
    def counts(self) -> torch.Tensor: ...

    @property
    def frames(self) -> Ints: ...


def visual_stage(index: Scenes, query: torch.Tensor, tokens: float, span: FrameChoice) -> Ints:
    """Return the best visual clusters, in order of score, that together have at least `tokens` tokens. Ties
    are ordered by number."""
    sizes = index.counts.numpy()
    readable = sizes > 0
    if not span.whole:
        readable &= span.meets(index.frames[0], index.frames[-1])
    rows = np.flatnonzero(readable)
    scores = scores_of(index.keys, query)[rows]
    order: Ints = rows[np.lexsort((rows, -scores))]
    enough = int(np.searchsorted(np.cumsum(sizes[order]), tokens)) + 1
    return order[:enough]


def _fill(order: Ints, counts: Ints, budget: int) -> list[int]:
    """Return clusters in order, skipping those that no longer fit into the budget."""
    picks: list[int] = []
    if not len(order) or not budget:
        return picks
    sizes, room = counts[order].tolist(), budget
    smallest = min(sizes)
    for place, size in zip(order.tolist(), sizes, strict=True):
        if room < smallest:
            break
        if size <= room:
            picks.append(place)
            room -= size
    return picks


def _representatives(index: LayerIndex, rows: Ints, span: FrameChoice) -> Representatives:
    """Return the representatives of some clusters, given as rows of the table."""
    table = index.table
    if not span.whole:
        # Omit clusters with frames outside the span, because their mean would reveal these frames.
        rows = rows[span.holds(table.frames[0, rows]) & span.holds(table.frames[2, rows])]
    rows = rows[np.lexsort((rows, table.frames[1, rows]))]
    picked = torch.from_numpy(rows)
    return Representatives(
        keys=table.keys.index_select(0, picked),
        values=table.values.index_select(0, picked),
        counts=torch.from_numpy(table.counts[rows]),
        frames=table.frames[1, rows],
        places=table.places[:, rows],
    )


@dataclass(frozen=True, slots=True)
class Slots:
    """Computes the positions of the frames that an answer reads in one layer.

    The frames are placed, in order, into a fixed number of slots that end where the window begins. If there
    are fewer frames than slots, they use the slots next to the window; if there are more, several frames
    share a slot.

    Attributes:
        origin: int64 [axes], position of the first slot.
        step: int64 [axes], distance from slot to slot.
        span: number of slots.
    """

    origin: Ints
    step: Ints
    span: int

    def positions(self, frames: Ints, places: Ints) -> Ints:
        """Return the positions of tokens or representatives, int64 [axes, n], given their frames and
        places."""
        if not len(frames):
            return places
        first = int(frames.min())
        occupied = np.zeros(int(frames.max()) - first + 1, dtype=bool)
        occupied[frames - first] = True
        rank: Ints = np.cumsum(occupied) - 1
        count = int(rank[-1]) + 1
        slot: Ints = rank + (self.span - count) if count <= self.span else rank * self.span // count
        out: Ints = (self.origin + slot[frames - first][:, None] * self.step).T + places
        return out


__all__ = [
    "Candidates",
    "FrameChoice",
    "Picks",
    "Representatives",
    "RetrievalSettings",
    "Retrieved",
    "Scenes",
    "Slots",
    "Span",
    "budget_of",
    "first_stage",
    "retrieve",
    "rows_read",
    "semantic_stage",
    "token_budget",
    "visual_stage",
]
