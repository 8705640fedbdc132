"""Groups frames into visual clusters by their embeddings, as they arrive (Mosaic, section V-B, level 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lookout.past.memory.statistics import kmeans, nearest, unit, unit_variance
from lookout.past.memory.types import Ints, MemorySettings


@dataclass(frozen=True, slots=True, eq=False)
class VisualLevel:
    """The visual clusters of a memory. Immutable.

    A visual cluster is never split, so KV never moves between visual clusters: a frame that would make a
    cluster too wide opens a new one. A full cluster is closed.

    Attributes:
        sums: [clusters, width], sum of each cluster's unit embeddings.
        counts: [clusters], number of each cluster's frames.
        scale: Mean variance at construction.
    """

    sums: torch.Tensor
    counts: torch.Tensor
    scale: float

    @property
    def clusters(self) -> int:
        """Number of visual clusters."""
        return len(self.counts)

    @classmethod
    def construct(cls, embeddings: torch.Tensor, settings: MemorySettings) -> tuple[VisualLevel, Ints]:
        """Cluster frame embeddings [frames, width] by cosine k-means.

        Returns:
            The level, and the cluster of each frame, int64 [frames].
        """
        x = unit(embeddings)
        clusters = max(1, round(len(x) / settings.visual_frames))
        own = kmeans(x, clusters, settings.seed, settings.iterations)
        counts = torch.bincount(own)
        sums = torch.zeros(len(counts), x.shape[1], dtype=x.dtype).index_add_(0, own, x)
        variance = unit_variance(sums, counts)
        scale = float((variance * counts).sum() / counts.sum())
        return cls(sums, counts, scale), own.numpy().astype(np.int64)

    def assigned(self, embeddings: torch.Tensor, settings: MemorySettings) -> tuple[VisualLevel, Ints]:
        """Add the embeddings of frames, [frames, width], one after the other. Each frame joins the most
        similar open cluster, or opens a new one.

        Returns:
            The grown level, and the cluster of each frame, int64 [frames].
        """
        x, used = unit(embeddings), len(self.counts)
        sums = torch.cat([self.sums, torch.zeros_like(x)])
        counts = torch.cat([self.counts, self.counts.new_zeros(len(x))])
        own = []
        for frame in x:
            place = self._place(frame, sums[:used], counts[:used], settings)
            if place == used:
                used += 1
            sums[place] += frame
            counts[place] += 1
            own.append(place)
        grown = VisualLevel(sums[:used].clone(), counts[:used].clone(), self.scale)
        return grown, np.array(own, dtype=np.int64)

    def _place(
        self, x: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor, settings: MemorySettings
    ) -> int:
        """Return the number of the cluster that x joins; the number of clusters if x opens a new one."""
        closed = counts >= settings.visual_cap
        if bool(closed.all()):
            return len(counts)
        free = torch.nonzero(~closed)[:, 0]
        place = int(free[nearest(x[None], unit(sums[free]))])
        total, members = sums[place] + x, int(counts[place]) + 1
        variance = 1 - float(total @ total) / members**2
        wide = variance > settings.visual_limit * max(self.scale, 1e-6) and members > settings.smallest_visual
        # Limit the number of clusters: with few frames per cluster, the first stage of retrieval would take
        # as long as the second.
        room = len(counts) < settings.smallest_visual + int(counts.sum()) // settings.smallest_visual
        return len(counts) if wide and room else place
