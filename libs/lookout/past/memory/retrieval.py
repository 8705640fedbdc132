"""Chooses which clusters an answer reads: two stages under a token budget, and representatives of the rest.

With representatives every token of the memory counts exactly once in every layer: it is retrieved, or its
cluster's mean represents it.
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
        frames: the frame budget; times the tokens of one frame it is the token budget of each layer.
        span: frame slots of positions that the memory takes, equal in all layers.
        breadth: the first stage takes visual clusters until they hold this many times the token budget.
        whole: share of the budget that the best visual clusters fill completely; the rest goes to the best
            semantic clusters of all that the first stage took. 0: only these (the paper).
        representatives: whether every cluster that is not retrieved has a representative (the paper).
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
                "frames must be at least 0, span and breadth at least 1"
            )
        if not 0 <= self.whole <= 1:
            raise HistoryError(f"retrieval settings: whole={self.whole} must be from 0 to 1")


@dataclass(frozen=True, slots=True, eq=False)
class Representatives:
    """Means that represent tokens that are not retrieved, in temporal order.

    `keys` and `values` [n, width], `counts` int64 [n], `frames` int64 [n] and `places` int64 [axes, n].
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
    """What one layer of one answer reads of the memory.

    Attributes:
        clusters: clusters in temporal order.
        representatives: representatives of other clusters.
        rows: which tokens of the clusters are read, bool [tokens of all of them]; None: all.
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
    """Return how many tokens of each layer the frame budget allows: frames times the mean tokens of a
    frame."""
    return budget_of(len(snapshot.times_us), len(snapshot.token_frame), settings)


def budget_of(frames: int, tokens: int, settings: RetrievalSettings) -> int:
    """Return `token_budget` of a memory with this many frames and tokens; at least one token, if there is a
    budget."""
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
        budget: tokens; whole clusters are taken in order of score while they fit, ties by cluster id. Without
            representatives a part of the next best cluster fills the rest.
        settings: breadth of the first stage, and whether there are representatives.
        span: frames that may be read.

    Returns:
        The clusters to fetch, and the representatives of everything else.
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
    """Count the tokens of each cluster that may be read, int64 [clusters]; `rows` are rows of the table."""
    clusters = index.clusters(rows)
    return np.array(
        [int(span.holds(snapshot.lookup(cluster.slab.tokens)[0]).sum()) for cluster in clusters], np.int64
    )


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The clusters among which the second stage chooses, one visual cluster after the other.

    Attributes:
        keys: [clusters, width], mean raw key of each.
        counts: int64 [clusters], tokens of each that may be read.
        ids: int64 [clusters], unique; they decide ties.
        first: int64 [clusters], first frame of each.
        home: int64 [clusters], the visual cluster of each, numbered in order of their score.
    """

    keys: torch.Tensor
    counts: Ints
    ids: Ints
    first: Ints
    home: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Picks:
    """The clusters that a layer reads, in temporal order, ties by id: the order of fetching changes nothing.

    `places` int64 [clusters] among the candidates; `tokens` int64 [clusters], how many of each are read;
    `partial`: whether one of them is read in part.
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
    """Return the candidates in the best visual clusters (`opened` returns those of some visual clusters, and
    data that belongs to them).

    A visual cluster that overlaps the span may hold little of it, so the stage continues until the budget can
    be filled or nothing is left.
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

    Whole clusters come first. Without representatives the next best cluster is read in part, so that every
    memory that holds enough gives exactly the budget.
    """
    counts, ids = candidates.counts, candidates.ids
    scores = scores_of(candidates.keys, query)
    open_ones = counts > 0
    by_scene = np.lexsort((ids, -scores, candidates.home))
    order: Ints = np.lexsort((ids, -scores))
    order = order[open_ones[order]]
    picks = _fill(by_scene[open_ones[by_scene]], counts, round(budget * settings.whole))
    untaken = open_ones.copy()
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
    """Return which rows of slabs are read: of each as many allowed ones as wanted, evenly spaced.

    Args:
        allowed: bool [rows of all slabs].
        sizes: rows of each slab.
        tokens: int64 [slabs], how many of each to read.
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
    """Return visual clusters in order of score until they hold `tokens` tokens; ties by number."""
    sizes = index.counts.numpy()
    open_ones = sizes > 0
    if not span.whole:
        open_ones &= span.meets(index.frames[0], index.frames[-1])
    rows = np.flatnonzero(open_ones)
    scores = scores_of(index.keys, query)[rows]
    order: Ints = rows[np.lexsort((rows, -scores))]
    enough = int(np.searchsorted(np.cumsum(sizes[order]), tokens)) + 1
    return order[:enough]


def _fill(order: Ints, counts: Ints, budget: int) -> list[int]:
    """Take whole clusters in order while they fit."""
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
        # A mean that includes frames outside the span would leak them.
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
    """Positions of memory frames: the frames that an answer reads in one layer, in order, over a fixed number
    of slots that end where the window begins. Fewer frames than slots are placed next to the window; more
    frames share slots.

    Attributes:
        origin: int64 [axes], position of the first slot.
        step: int64 [axes], distance from slot to slot.
        span: number of slots.
    """

    origin: Ints
    step: Ints
    span: int

    def positions(self, frames: Ints, places: Ints) -> Ints:
        """Return positions int64 [axes, n] of tokens or representatives by their frame and place in it."""
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
