"""Spans of cameras' pasts in the order in which they are worth a look, by landmarks alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from lookout.past.memory.ranking import CameraPast, Landmarks
from lookout.past.memory.types import Ints

_WIDENED: Final = 1 << 18
"""Clusters whose keys are float32 at a time, which bounds the memory of a search over many days."""


@dataclass(frozen=True, slots=True, order=True)
class PastSpan:
    """A stretch of a camera's past, as long as a window. Times are Unix microseconds."""

    camera: str
    begin_us: int
    end_us: int

    @property
    def before(self) -> PastSpan:
        """The span that ends where this one begins."""
        return PastSpan(self.camera, 2 * self.begin_us - self.end_us, self.begin_us)

    @property
    def after(self) -> PastSpan:
        """The span that begins where this one ends."""
        return PastSpan(self.camera, self.end_us, 2 * self.end_us - self.begin_us)


@dataclass(frozen=True, slots=True, eq=False)
class RankedSpans:
    """Spans, the most promising first; each is made when it is looked at.

    Attributes:
        cameras: Their names.
        camera: int64 [spans], which camera.
        number: int64 [spans], time of its begin in lengths of a span.
        score: float64 [spans], descending; 0 is average, of a span without landmarks as well.
        length_us: Of a span.
    """

    cameras: Sequence[str]
    camera: Ints
    number: Ints
    score: np.ndarray
    length_us: int

    def __len__(self) -> int:
        return len(self.camera)

    def part(self, begin: int, stop: int | None = None) -> list[PastSpan]:
        """Those from one place to another; None: to the end."""
        camera, number = self.camera[begin:stop].tolist(), (self.number[begin:stop] * self.length_us).tolist()
        return [
            PastSpan(self.cameras[owner], begin_us, begin_us + self.length_us)
            for owner, begin_us in zip(camera, number, strict=True)
        ]


def ranked_spans(
    pasts: Mapping[str, CameraPast],
    queries: torch.Tensor,
    length_us: int,
    since_us: int | None = None,
    until_us: int | None = None,
) -> RankedSpans:
    """The spans of all cameras, the most promising first.

    A span counts as much as the best of the clusters that reach into it. Layers have scales of their own: in
    each one, scores are counted in standard deviations over all clusters. A span without landmarks counts as
    an average one, so that it is neither preferred nor lost.

    Args:
        pasts: By camera.
        queries: [layers, width], `question_queries`.
        length_us: Of a span.
        since_us: Only spans that end later; `until_us` only those that begin earlier.
    """
    names = sorted(pasts)
    sizes = [len(pasts[name].chapters) for name in names]
    times = np.array([times for name in names for times in pasts[name].chapters], np.int64).reshape(-1, 2)
    begin = times[:, 0] if since_us is None else np.maximum(times[:, 0], since_us)
    end = times[:, 1] if until_us is None else np.minimum(times[:, 1], until_us - 1)
    owner = np.repeat(np.arange(len(names)), sizes)
    inside = begin <= end
    first, last = begin[inside] // length_us, end[inside] // length_us
    # Camera and time as one number, so that the spans of all cameras are one ascending row.
    origin = int(first.min()) if len(first) else 0
    row = int(last.max()) - origin + 1 if len(last) else 1
    spans = np.unique(_reached(owner[inside] * row + first - origin, owner[inside] * row + last - origin))
    value = np.full(len(spans), -np.inf)
    marks = [mark for name in names for mark in pasts[name].landmarks]
    if marks:
        counts = [sum(len(mark.begin_us) for mark in pasts[name].landmarks) for name in names]
        home = np.repeat(np.arange(len(names)), counts) * row
        cluster_first = np.concatenate([mark.begin_us for mark in marks]) // length_us - origin
        cluster_last = np.concatenate([mark.end_us for mark in marks]) // length_us - origin
        low = np.searchsorted(spans, home + np.clip(cluster_first, 0, row - 1))
        high = np.searchsorted(spans, home + np.clip(cluster_last, -1, row - 1), side="right")
        high = np.maximum(np.where(cluster_first < row, high, low), low)
        places = _reached(low, high - 1)
        order = np.argsort(places, kind="stable")
        reached, begins = np.unique(places[order], return_index=True)
        scores = np.repeat(_cluster_scores(marks, queries), high - low)[order]
        if len(reached):
            value[reached] = np.maximum.reduceat(scores, begins)
    value[np.isinf(value)] = 0.0
    camera, number = spans // row, spans % row + origin
    order = np.lexsort((-number, camera, -value))
    return RankedSpans(names, camera[order], number[order], value[order], length_us)


def _reached(first: Ints, last: Ints) -> Ints:
    """All numbers from each first one to its last one, range after range; none where last < first."""
    sizes = np.maximum(last - first + 1, 0)
    out: Ints = np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(int(sizes.sum()))
    return out


def _cluster_scores(landmarks: Sequence[Landmarks], queries: torch.Tensor) -> np.ndarray:
    """The score of every cluster, landmarks after landmarks."""
    own_queries = queries[torch.from_numpy(landmarks[0].layers)]
    keys = torch.cat([torch.from_numpy(mark.keys) for mark in landmarks], 1)
    # numpy converts float16 several times slower than torch does.
    raw = np.stack(
        [
            np.concatenate([torch.mv(part.float(), query).numpy() for part in layer.split(_WIDENED)])
            for layer, query in zip(keys, own_queries, strict=True)
        ]
    )
    spread = raw.std(1, keepdims=True)
    score: np.ndarray = ((raw - raw.mean(1, keepdims=True)) / np.where(spread > 0, spread, 1.0)).mean(0)
    return score
