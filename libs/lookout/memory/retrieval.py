"""Which clusters an answer reads: two stages under a token budget, and what stands for the rest.

Every token of the memory is accounted for exactly once in every layer: it is retrieved; or its cluster's
representative stands for it, weighted by the logarithm of its size; or it is part of the one representative
of its visual cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lookout.memory.clusters import Cluster, Partition
from lookout.memory.history import LayerIndex, Snapshot
from lookout.memory.types import HistoryError, Ints


@dataclass(frozen=True, slots=True)
class RetrievalSettings:
    """How much an answer reads.

    Attributes:
        frames: the frame budget; with the tokens of one frame it gives the token budget of each layer.
        span: frame slots of positions that the memory takes, equal in all layers.
        breadth: the first stage takes visual clusters until they hold so many times the token budget.
        representatives: at most so many representatives a layer; None: one for every cluster that is not
            retrieved; 0: none.
        weighted: a representative counts as many times as it has members (the log of its size is added to its
            score); else once.
    """

    frames: int = 64
    span: int = 32
    breadth: float = 2.0
    representatives: int | None = None
    weighted: bool = False

    def __post_init__(self) -> None:
        if self.frames < 0 or self.span < 1 or self.breadth < 1:
            raise HistoryError(
                f"retrieval settings: frames={self.frames}, span={self.span}, breadth={self.breadth}: "
                "frames must be at least 0, span and breadth at least 1"
            )
        if self.representatives is not None and self.representatives < 0:
            raise HistoryError(f"retrieval settings: representatives={self.representatives} is negative")


@dataclass(frozen=True, slots=True, eq=False)
class Representatives:
    """Means that stand for tokens that are not retrieved, in temporal order.

    `keys` and `values` [n, width], `counts` int64 [n] (their log-sizes weigh them), `frames` int64 [n] and
    `places` int64 [axes, n] where they stand.
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
    """What one layer of one answer reads of the memory: clusters in temporal order, and representatives.
    `scored` counts the candidates that were compared with the query."""

    clusters: tuple[Cluster, ...]
    representatives: Representatives
    scored: int = 0

    @property
    def tokens(self) -> int:
        """Tokens retrieved."""
        return sum(cluster.count for cluster in self.clusters)


@dataclass(frozen=True, slots=True)
class Span:
    """Frame numbers [first, last] that an answer may read; None: no bound on that side."""

    first: int | None = None
    last: int | None = None

    @classmethod
    def of_times(cls, times_us: Ints, since_us: int | None, until_us: int | None) -> Span:
        """The frames with since <= time < until."""
        first = None if since_us is None else int(np.searchsorted(times_us, since_us))
        last = None if until_us is None else int(np.searchsorted(times_us, until_us)) - 1
        return cls(first, last)

    @property
    def whole(self) -> bool:
        """Nothing is left out."""
        return self.first is None and self.last is None

    def holds(self, frames: Ints) -> np.ndarray:
        """Which frame numbers lie inside, bool of the same shape."""
        inside = np.ones(frames.shape, dtype=bool)
        if self.first is not None:
            inside &= frames >= self.first
        if self.last is not None:
            inside &= frames <= self.last
        return inside

    def meets(self, first: Ints, last: Ints) -> np.ndarray:
        """Which stretches of frames [first, last] have one inside, bool of the same shape."""
        return (first <= (self.last if self.last is not None else first)) & (
            last >= (self.first if self.first is not None else last)
        )


def token_budget(snapshot: Snapshot, settings: RetrievalSettings) -> int:
    """Tokens of each layer that the frame budget allows: frames times the mean tokens of a frame."""
    frames = max(1, len(snapshot.times_us))
    return round(settings.frames * len(snapshot.token_frame) / frames)


def retrieve(  # noqa: PLR0917
    snapshot: Snapshot,
    layer: int,
    query: torch.Tensor,
    budget: int,
    settings: RetrievalSettings,
    span: Span = Span(),
) -> Retrieved:
    """Two-stage retrieval in one layer (Mosaic, section V-C).

    Args:
        snapshot: the memory.
        layer: number of the layer.
        query: [width], mean over question tokens and each KV head's query heads; un-rotated.
        budget: tokens; whole clusters are taken in order of score while they fit, ties by cluster id.
        settings: breadth of the first stage and number of representatives.
        span: frames that may be read.

    Returns:
        The clusters to fetch, and the representatives of everything else.
    """
    index = snapshot.layers[layer]
    q = query.to(index.keys.dtype)
    chosen = _visual_stage(index, q, budget * settings.breadth, settings)
    parts = [part for place in chosen if (part := index.partitions[place]) is not None]
    if not parts:
        return Retrieved((), _nothing(snapshot, q.shape[0], q.dtype))
    clusters = [cluster for part in parts for cluster in part.clusters]
    keys = parts[0].keys if len(parts) == 1 else torch.cat([part.keys for part in parts])
    scores = (keys @ q).numpy()
    ids = np.concatenate([part.ids for part in parts])
    order = np.lexsort((ids, -scores))
    frames = np.concatenate([part.frames for part in parts], 1)
    if not span.whole:
        order = order[span.meets(frames[0], frames[2])[order]]
    taken = _fill(order, [cluster.count for cluster in clusters], budget)
    # In temporal order, ties by id, so that fetching in another order changes nothing.
    found = sorted((clusters[i] for i in taken), key=lambda cluster: (cluster.first, cluster.id))
    room = settings.representatives
    if room == 0:
        nothing = _nothing(snapshot, q.shape[0], q.dtype)
        return Retrieved(tuple(found), nothing, len(index.counts) + len(clusters))
    if room is not None:
        room = max(0, room - len(index.partitions))
    stands = _stand_ins(index, parts, chosen, order, taken, room, snapshot, span)
    return Retrieved(tuple(found), stands, len(index.counts) + len(clusters))


def _visual_stage(
    index: LayerIndex, query: torch.Tensor, tokens: float, settings: RetrievalSettings
) -> list[int]:
    """Visual clusters in order of score until they hold `tokens` tokens, ascending."""
    held = index.counts.numpy()
    if not len(held):
        return []
    if tokens >= held.sum() or (settings.representatives is None and tokens == 0):
        everything: list[int] = np.flatnonzero(held).tolist()
        return everything
    scores = (index.keys @ query).numpy()
    order = np.lexsort((np.arange(len(held)), -scores))
    order = order[held[order] > 0]
    enough = int(np.searchsorted(np.cumsum(held[order]), tokens)) + 1
    chosen: list[int] = np.sort(order[:enough]).tolist()
    return chosen


def _fill(order: Ints, counts: list[int], budget: int) -> list[int]:
    """Whole clusters in order while they fit."""
    taken, left = [], budget
    smallest = min(counts, default=0)
    for place in order.tolist():
        if left < smallest:
            break
        if counts[place] <= left:
            taken.append(place)
            left -= counts[place]
    return taken


def _stand_ins(  # noqa: PLR0917
    index: LayerIndex,
    parts: list[Partition],
    chosen: list[int],
    order: Ints,
    taken: list[int],
    room: int | None,
    snapshot: Snapshot,
    span: Span,
) -> Representatives:
    """Representatives of what is not retrieved.

    Without a bound every other cluster stands for itself, in unchosen visual clusters too. With one, the
    best `room` clusters of the chosen visual clusters do, and the rest of each visual cluster is one mean.
    """
    picked = set(taken)
    if room is None:
        inside = set(chosen)
        others = [part for v, part in enumerate(index.partitions) if v not in inside and part is not None]
        everyone = [*parts, *others]
        keep = np.ones(sum(len(part.clusters) for part in everyone), dtype=bool)
        keep[list(picked)] = False
        return _stacked(everyone, keep, snapshot, span)
    alone = [i for i in order.tolist() if i not in picked][:room]
    keep = np.zeros(sum(len(part.clusters) for part in parts), dtype=bool)
    keep[alone] = True
    fine = _stacked(parts, keep, snapshot, span)
    if not span.whole:
        return fine
    shown = keep.copy()
    shown[list(picked)] = True
    return _in_order([fine, _remainders(index, parts, chosen, shown, snapshot)])


def _stacked(parts: list[Partition], keep: np.ndarray, snapshot: Snapshot, span: Span) -> Representatives:
    frames = np.concatenate([part.frames for part in parts], 1)
    if not span.whole:
        # A mean that also speaks for frames outside would leak them.
        keep = keep & span.holds(frames[0]) & span.holds(frames[2])
    rows = np.flatnonzero(keep)
    order = rows[np.lexsort((rows, frames[1][rows]))]
    chosen = torch.from_numpy(order)
    return Representatives(
        keys=torch.cat([part.keys for part in parts])[chosen],
        values=torch.cat([part.values for part in parts])[chosen],
        counts=torch.cat([part.counts for part in parts])[chosen],
        frames=frames[1][order],
        places=np.concatenate([part.places for part in parts], 1)[:, order],
    )


def _remainders(
    index: LayerIndex, parts: list[Partition], chosen: list[int], shown: np.ndarray, snapshot: Snapshot
) -> Representatives:
    """One mean per visual cluster of all its tokens that neither are retrieved nor stand for themselves."""
    held = np.array([part is not None for part in index.partitions])
    counts = index.counts.clone()
    keys, values = index.keys * counts[:, None], index.values * counts[:, None]
    start = 0
    for place, part in zip([v for v in chosen if held[v]], parts, strict=True):
        rows = torch.from_numpy(np.flatnonzero(shown[start : start + len(part.clusters)]))
        start += len(part.clusters)
        number = part.counts[rows]
        keys[place] -= (part.keys[rows] * number[:, None]).sum(0)
        values[place] -= (part.values[rows] * number[:, None]).sum(0)
        counts[place] -= number.sum()
    rest = counts > 0
    places = np.flatnonzero(rest.numpy())
    middles = [part.middle for v in places if (part := index.partitions[v]) is not None]
    axes = snapshot.token_place.shape[0]
    number = counts[rest]
    return Representatives(
        keys=keys[rest] / number[:, None],
        values=values[rest] / number[:, None],
        counts=number,
        frames=np.array([frame for frame, _ in middles], dtype=np.int64),
        places=np.stack([place for _, place in middles], 1) if middles else np.zeros((axes, 0), np.int64),
    )


def _in_order(several: list[Representatives]) -> Representatives:
    frames = np.concatenate([one.frames for one in several])
    order = np.lexsort((np.arange(len(frames)), frames))
    chosen = torch.from_numpy(order)
    return Representatives(
        keys=torch.cat([one.keys for one in several])[chosen],
        values=torch.cat([one.values for one in several])[chosen],
        counts=torch.cat([one.counts for one in several])[chosen],
        frames=frames[order],
        places=np.concatenate([one.places for one in several], 1)[:, order],
    )


def _nothing(snapshot: Snapshot, width: int, dtype: torch.dtype) -> Representatives:
    none = torch.zeros(0, width, dtype=dtype)
    return Representatives(
        none,
        none,
        torch.zeros(0, dtype=torch.long),
        np.zeros(0, np.int64),
        np.zeros((snapshot.token_place.shape[0], 0), np.int64),
    )


@dataclass(frozen=True, slots=True)
class Slots:
    """Positions of memory frames: the frames an answer reads in one layer, in order, over a fixed number of
    slots that end where the window begins. Fewer frames than slots stand next to the window; more share.

    Attributes:
        origin: int64 [axes], position of the first slot.
        step: int64 [axes], from slot to slot.
        span: number of slots.
    """

    origin: Ints
    step: Ints
    span: int

    def of(self, frames: Ints) -> tuple[Ints, Ints]:
        """Distinct frames ascending, and the slot of each."""
        distinct = np.unique(frames)
        rank, count = np.arange(len(distinct)), len(distinct)
        if count <= self.span:
            return distinct, rank + (self.span - count)
        return distinct, rank * self.span // count

    def positions(self, frames: Ints, places: Ints) -> Ints:
        """Positions int64 [axes, n] of tokens or representatives by their frame and place in it."""
        distinct, slots = self.of(frames)
        slot = slots[np.searchsorted(distinct, frames)]
        out: Ints = (self.origin + slot[:, None] * self.step).T + places
        return out


__all__ = [
    "Representatives",
    "RetrievalSettings",
    "Retrieved",
    "Slots",
    "Span",
    "retrieve",
    "token_budget",
]
