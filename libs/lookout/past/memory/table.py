"""A layer's clusters in a few contiguous arrays, which retrieval reads faster than many small ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from lookout.past.memory.clusters import ClusterPartition
from lookout.past.memory.types import Ints


@dataclass(frozen=True, slots=True, eq=False)
class ClusterTable:
    """The semantic clusters of a layer, ordered by visual cluster. Immutable.

    Attributes:
        keys: [clusters, width], mean raw key of each cluster.
        values: [clusters, width], mean value of each cluster.
        counts: int64 [clusters], number of members.
        ids: int64 [clusters], ids of the clusters.
        frames: int64 [3, clusters], first, mean (rounded) and last frame number.
        places: int64 [axes, clusters], mean place in the frame (rounded).
        starts: int64 [visual + 1], first row of each visual cluster; the last entry is the number of
            clusters.
    """

    keys: torch.Tensor
    values: torch.Tensor
    counts: Ints
    ids: Ints
    frames: Ints
    places: Ints
    starts: Ints

    @classmethod
    def empty(cls, width: int, axes: int, dtype: torch.dtype) -> ClusterTable:
        """Return the table of a layer without clusters."""
        means, none = torch.zeros(0, width, dtype=dtype), np.zeros(0, np.int64)
        places = np.zeros((axes, 0), np.int64)
        return cls(means, means, none, none, np.zeros((3, 0), np.int64), places, np.zeros(1, np.int64))

    def rows(self, visual: Ints) -> tuple[Ints, Ints]:
        """Return the rows of some visual clusters, int64 [n], and for each row the index of its visual
        cluster in `visual`, int64 [n]."""
        first, lengths = self.starts[visual], self.starts[visual + 1] - self.starts[visual]
        home = np.repeat(np.arange(len(visual)), lengths)
        before = np.cumsum(lengths) - lengths
        return np.arange(len(home)) + (first - before)[home], home

    def changed(self, partitions: Mapping[int, ClusterPartition | None], visual: int) -> ClusterTable:
        """Return the table after some partitions were replaced or added; only their rows are computed.

        Args:
            partitions: the new clusters of some visual clusters; None: no token of the visual cluster is
                left.
            visual: number of visual clusters after the change.
        """
        starts = np.pad(self.starts, (0, visual + 1 - len(self.starts)), mode="edge")
        lengths = np.diff(starts)
        pieces, position = [], 0
        for place in sorted(partitions):
            pieces.append(self._cut(position, int(starts[place])))
            part = partitions[place]
            if part is not None:
                pieces.append(_piece(part))
            lengths[place] = 0 if part is None else len(part.clusters)
            position = int(starts[place + 1])
        pieces.append(self._cut(position, len(self.ids)))
        keys, values, counts, ids, frames, places = zip(*pieces, strict=True)
        return ClusterTable(
            torch.cat(keys),
            torch.cat(values),
            np.concatenate(counts),
            np.concatenate(ids),
            np.concatenate(frames, 1),
            np.concatenate(places, 1),
            np.concatenate([starts[:1], np.cumsum(lengths)]),
        )

    def _cut(self, start: int, stop: int) -> _Piece:
        part = slice(start, stop)
        return (
            self.keys[part],
            self.values[part],
            self.counts[part],
            self.ids[part],
            self.frames[:, part],
            self.places[:, part],
        )


_Piece = tuple[torch.Tensor, torch.Tensor, Ints, Ints, Ints, Ints]


def _piece(part: ClusterPartition) -> _Piece:
    counts = part.counts[:, None]
    keys, values = (
        torch.stack([getattr(cluster, name) for cluster in part.clusters]) / counts
        for name in ("key", "value")
    )
    places = np.stack([np.rint(cluster.place / cluster.count) for cluster in part.clusters], 1)
    return keys, values, part.counts.numpy(), part.ids, part.frames, places.astype(np.int64)
