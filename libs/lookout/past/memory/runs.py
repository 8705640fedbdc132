"""Sums over runs of neighbouring visual clusters, so that a question can read few means of a long history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lookout.past.memory.clusters import ClusterPartition
from lookout.past.memory.types import Ints


@dataclass(frozen=True, slots=True, eq=False)
class RunSums:
    """Sums over runs of visual clusters: level k has runs of 2**k, in the order in which they were opened;
    immutable.

    Attributes:
        vectors: per level [runs, 2 * width], sums of raw keys and of values.
        moments: per level int64 [runs, 2 + axes], members, and sums of their frame numbers and places.
    """

    vectors: tuple[torch.Tensor, ...]
    moments: tuple[Ints, ...]

    @classmethod
    def empty(cls, width: int, axes: int, dtype: torch.dtype) -> RunSums:
        """Return the sums of a layer without clusters."""
        return cls((torch.zeros(0, 2 * width, dtype=dtype),), (np.zeros((0, 2 + axes), np.int64),))

    def changed(self, partitions: Mapping[int, ClusterPartition | None], visual: int) -> RunSums:
        """Return the sums after some of `visual` partitions were replaced or added; only their runs are
        summed again."""
        vectors, moments = [_longer(self.vectors, 0, visual)], [_longer_ints(self.moments, 0, visual)]
        for place, part in partitions.items():
            vectors[0][place] = 0 if part is None else torch.cat(part.totals[:2])
            moments[0][place] = 0 if part is None else _moments(part)
        touched: Ints = np.array(sorted(partitions), np.int64)
        while len(vectors[-1]) > 1:
            level, runs = len(vectors), (len(vectors[-1]) + 1) // 2
            touched = np.unique(touched // 2) if level < len(self.vectors) else np.arange(runs)
            index = torch.from_numpy(touched)
            pairs, counted = _longer(vectors, -1, 2 * runs), _longer_ints(moments, -1, 2 * runs)
            vectors.append(_longer(self.vectors, level, runs))
            moments.append(_longer_ints(self.moments, level, runs))
            vectors[-1][index] = pairs[2 * index] + pairs[2 * index + 1]
            moments[-1][touched] = counted[2 * touched] + counted[2 * touched + 1]
        return RunSums(tuple(vectors), tuple(moments))

    def level(self, runs: int) -> int:
        """Return the finest level of at most `runs` runs, or the coarsest of all."""
        return next(k for k, level in enumerate(self.moments) if len(level) <= max(1, runs))


def _moments(part: ClusterPartition) -> Sequence[int]:
    clusters = part.clusters
    place = np.sum([cluster.place for cluster in clusters], axis=0).tolist()
    return [sum(c.count for c in clusters), sum(c.frame for c in clusters), *place]


def _longer(levels: Sequence[torch.Tensor], level: int, rows: int) -> torch.Tensor:
    """Return a copy of a level with zeros up to `rows` rows; all zeros if there is no such level yet."""
    old = levels[level] if level < len(levels) else levels[0][:0]
    return torch.cat([old, old.new_zeros(rows - len(old), old.shape[1])])


def _longer_ints(levels: Sequence[Ints], level: int, rows: int) -> Ints:
    old = levels[level] if level < len(levels) else levels[0][:0]
    return np.concatenate([old, np.zeros((rows - len(old), old.shape[1]), np.int64)])
