"""Ranks spans of cameras' pasts by how promising they are. It needs only landmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import torch

from lookout.past.memory.ranking import CameraPast, Landmarks
from lookout.past.memory.types import Ints

_FIRST: Final = 1 << 12
"""Number of best clusters whose spans are sorted first, because most searches need no more. All spans are
sorted only when more are requested."""


@dataclass(frozen=True, slots=True, order=True)
class PastSpan:
    """A time range of a camera's past, as long as a window. Times are Unix microseconds."""

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
class _Order:
    """Spans sorted by score, best first; ties are sorted by camera, then newest first.

    Attributes:
        camera: int64 [spans], index of the span's camera.
        number: int64 [spans], begin of the span in Unix time, divided by the length of a span.
        score: float64 [spans]; 0 is average, and is the score of spans without landmarks.
    """

    camera: Ints
    number: Ints
    score: np.ndarray

    @classmethod
    def of(cls, camera: Ints, number: Ints, score: np.ndarray) -> _Order:
        order = np.lexsort((-number, camera, -score))
        return cls(camera[order], number[order], score[order])


@dataclass(slots=True, eq=False)
class RankedSpans:
    """Spans sorted by score, the most promising first. `PastSpan` objects are created only on request.

    Attributes:
        length_us: Length of a span in microseconds.
    """

    length_us: int
    _stretches: _Stretches
    _clusters: _Clusters
    _first: _Order | None = None
    _all: _Order | None = None

    def __post_init__(self) -> None:
        self._first = self._best()

    def __len__(self) -> int:
        return int(self._stretches.offset[-1])

    def part(self, begin: int, stop: int | None = None) -> list[PastSpan]:
        """Return the spans [begin, stop) of the order; None: to the end."""
        order, cameras = self._until(stop), self._stretches.cameras
        camera, number = (
            order.camera[begin:stop].tolist(),
            (order.number[begin:stop] * self.length_us).tolist(),
        )
        return [
            PastSpan(cameras[owner], begin_us, begin_us + self.length_us)
            for owner, begin_us in zip(camera, number, strict=True)
        ]

    def scores(self, begin: int, stop: int | None = None) -> list[float]:
        """Return the scores of `part(begin, stop)`, in standard deviations above an average cluster; 0 for a
        span without landmarks."""
        out: list[float] = self._until(stop).score[begin:stop].tolist()
        return out

    def _until(self, stop: int | None) -> _Order:
        if self._first is not None and stop is not None and stop <= len(self._first.score):
            return self._first
        if self._all is None:
            self._all = self._every()
        return self._all

    def _best(self) -> _Order | None:
        """Return the sorted spans of the best clusters; None if a span of another cluster could rank between
        them."""
        scores = self._clusters.scores
        if len(scores) <= _FIRST:
            return None
        least = np.partition(scores, -_FIRST)[-_FIRST]
        best = np.flatnonzero(scores >= least)
        if least <= 0 or len(best) > 4 * _FIRST:
            return None
        places, value = self._clusters.reached(best, self.length_us, self._stretches)
        return _Order.of(*self._stretches.at(places), value)

    def _every(self) -> _Order:
        """Return all spans, sorted."""
        value = np.zeros(len(self))
        places, scores = self._clusters.reached(
            np.arange(len(self._clusters.scores)), self.length_us, self._stretches
        )
        value[places] = scores
        return _Order.of(*self._stretches.at(np.arange(len(self))), value)


def ranked_spans(
    pasts: Mapping[str, CameraPast],
    queries: torch.Tensor,
    length_us: int,
    since_us: int | None = None,
    until_us: int | None = None,
) -> RankedSpans:
    """Rank the spans of all cameras, the most promising first.

    A span has the score of the best cluster that overlaps it. Layers differ in scale, so a cluster's score in
    each layer is expressed in standard deviations over all clusters, then averaged over layers. A span
    without landmarks has the average score, 0.

    Args:
        pasts: Pasts by camera.
        queries: Query vectors [layers, width] to compare landmarks with, such as those of `question_queries`.
        length_us: Length of a span in microseconds.
        since_us: Only spans that end after this time; None: all.
        until_us: Only spans that begin before this time; None: all.
    """
    stretches = _Stretches.of(pasts, length_us, since_us, until_us)
    marks = [
        (number, mark) for number, name in enumerate(stretches.cameras) for mark in pasts[name].landmarks
    ]
    return RankedSpans(length_us, stretches, _Clusters.of(marks, queries))


@dataclass(frozen=True, slots=True, eq=False)
class _Stretches:
    """Numbers the spans of all cameras consecutively: camera by camera, oldest span first.

    A stretch is a run of adjacent spans of a camera. Times are counted in lengths of a span.

    Attributes:
        cameras: Ids of the cameras, sorted.
        first: int64 [stretches], begin of each stretch as camera * row + time - origin, ascending.
        offset: int64 [stretches + 1], number of spans before each stretch; the last entry is the total.
        row: Number of spans from the earliest to the latest time, both included.
        origin: The earliest time.
    """

    cameras: Sequence[str]
    first: Ints
    offset: Ints
    row: int = 1
    origin: int = 0

    @classmethod
    def of(
        cls,
        pasts: Mapping[str, CameraPast],
        length_us: int,
        since_us: int | None,
        until_us: int | None,
    ) -> _Stretches:
        """Return the stretches that the cameras' chapters cover from `since_us` to `until_us`."""
        cameras = sorted(pasts)
        chapters = [pasts[camera].chapters for camera in cameras]
        owner = np.repeat(np.arange(len(cameras)), list(map(len, chapters)))
        flat = chain.from_iterable(chain.from_iterable(chapters))
        times = np.fromiter(flat, np.int64, 2 * len(owner)).reshape(-1, 2)
        begin = times[:, 0] if since_us is None else np.maximum(times[:, 0], since_us)
        end = times[:, 1] if until_us is None else np.minimum(times[:, 1], until_us - 1)
        inside = begin <= end
        if not inside.any():
            return cls(cameras, np.zeros(0, np.int64), np.zeros(1, np.int64))
        first, last, owner = begin[inside] // length_us, end[inside] // length_us, owner[inside]
        origin = int(first.min())
        row = int(last.max()) - origin + 1
        first, last = owner * row + first - origin, owner * row + last - origin
        order = np.argsort(first, kind="stable")
        first, last = first[order], np.maximum.accumulate(last[order])
        begins = np.flatnonzero(np.concatenate([[True], first[1:] > last[:-1]]))
        first, last = first[begins], last[np.append(begins[1:], len(first)) - 1]
        return cls(cameras, first, np.append(0, np.cumsum(last - first + 1)), row, origin)

    def before(self, camera: Ints, time: Ints) -> Ints:
        """Return, for each camera and time, how many spans come before it, int64."""
        place = camera * self.row + np.clip(time - self.origin, 0, self.row)
        number = np.searchsorted(self.first, place) - 1
        inside = np.minimum(place - self.first[number], np.diff(self.offset)[number])
        out: Ints = np.where(number < 0, 0, self.offset[number] + inside)
        return out

    def at(self, places: Ints) -> tuple[Ints, Ints]:
        """Return the cameras and the times of the spans with these numbers."""
        number = np.searchsorted(self.offset, places, side="right") - 1
        spans = self.first[number] + places - self.offset[number]
        return spans // self.row, spans % self.row + self.origin


@dataclass(frozen=True, slots=True, eq=False)
class _Clusters:
    """The clusters of all landmarks, numbered consecutively, with their scores.

    Attributes:
        owner: int64 [landmarks], index of each landmarks object's camera.
        offset: int64 [landmarks], number of each landmarks object's first cluster.
        landmarks: The landmarks objects.
        scores: float32 [clusters], score of each cluster.
    """

    owner: Ints
    offset: Ints
    landmarks: Sequence[Landmarks]
    scores: np.ndarray

    @classmethod
    def of(cls, marks: Sequence[tuple[int, Landmarks]], queries: torch.Tensor) -> _Clusters:
        landmarks = [mark for _, mark in marks]
        sizes = np.array([len(mark.begin_us) for mark in landmarks], np.int64)
        owner = np.array([number for number, _ in marks], np.int64)
        return cls(owner, np.cumsum(sizes) - sizes, landmarks, _cluster_scores(landmarks, queries))

    def reached(self, clusters: Ints, length_us: int, stretches: _Stretches) -> tuple[Ints, np.ndarray]:
        """Return the numbers of the spans that the clusters overlap, and the best score of each span."""
        if not len(stretches.first):
            return np.zeros(0, np.int64), np.zeros(0)
        mark = np.searchsorted(self.offset, clusters, side="right") - 1
        begin, end = self._times(clusters, mark)
        low = stretches.before(self.owner[mark], begin // length_us)
        high = stretches.before(self.owner[mark], end // length_us + 1)
        places = _reached(low, high - 1)
        scores = np.repeat(self.scores[clusters].astype(np.float64), np.maximum(high - low, 0))
        order = np.argsort(places, kind="stable")
        spans, begins = np.unique(places[order], return_index=True)
        return spans, np.maximum.reduceat(scores[order], begins) if len(spans) else scores

    def _times(self, clusters: Ints, mark: Ints) -> tuple[Ints, Ints]:
        """Return begin and end (Unix microseconds) of clusters, given their ascending numbers and the index
        of each one's landmarks object in `mark`."""
        edges = np.flatnonzero(np.diff(mark, prepend=-1))
        groups = np.split(clusters, edges[1:])
        begin, end = [], []
        for number, group in zip(mark[edges].tolist(), groups, strict=bool(len(edges))):
            own = self.landmarks[number]
            begin.append(own.begin_us[group - self.offset[number]])
            end.append(own.end_us[group - self.offset[number]])
        none = [np.zeros(0, np.int64)]
        return np.concatenate(begin or none), np.concatenate(end or none)


def _reached(first: Ints, last: Ints) -> Ints:
    """Return all integers in the ranges [first, last], concatenated. A range with last < first is empty."""
    sizes = np.maximum(last - first + 1, 0)
    out: Ints = np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(int(sizes.sum()))
    return out


def _cluster_scores(landmarks: Sequence[Landmarks], queries: torch.Tensor) -> np.ndarray:
    """Return the score of every cluster, in the order of the landmarks: float32 [clusters]."""
    if not landmarks:
        return np.zeros(0, np.float32)
    own = queries[torch.from_numpy(landmarks[0].layers)].float().numpy()
    raw = np.empty((len(own), sum(map(len, landmarks))), np.float32)
    first = 0
    for mark in landmarks:
        stop = first + len(mark)
        # numpy converts float16 several times slower than torch does.
        is_half = mark.keys.dtype == np.float16
        keys = torch.from_numpy(mark.keys).float().numpy() if is_half else mark.keys
        for row, layer, query in zip(raw, keys, own, strict=True):
            np.dot(layer, query, out=row[first:stop])
        first = stop
    middle, spread = raw.mean(1, keepdims=True), raw.std(1, keepdims=True)
    score: np.ndarray = ((raw - middle) / np.where(spread > 0, spread, np.float32(1))).mean(0)
    return score
