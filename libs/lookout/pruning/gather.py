"""Motion between two sampled frames, gathered from every inter frame in between (CodecSight, section 3.3.1).

There are two rules. `union` (the paper) takes the largest displacement that any frame showed. `signed-sum`
adds the displacements along the P chain, so that noise around zero cancels out and steady motion adds up.
Both need an unbroken chain: after an I-frame, a damaged frame or a jump of the clock, or if the codec has no
vectors, the sample is judged by luma instead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from lookout.pruning.raster import Cells, Index, PatchMap, cover
from lookout.pruning.residual import compensated_difference, patch_means
from lookout.video.motion import (
    Basis,
    FrameInfo,
    Geometry,
    Luma,
    Motion,
    Picture,
    PredictionBlocks,
    PredictionKind,
    VectorSource,
    joined,
)

MOST_WAITING: Final = 1 << 17  # blocks; 40 bytes each

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Values = TypeVar("Values", F32, npt.NDArray[np.uint8])


class GatherMethod(StrEnum):
    """How the displacements of several frames are combined."""

    UNION = "union"
    UNION_CODED = "union-coded"  # lengths in pixels of the coded picture, as in the paper
    SIGNED_SUM = "signed-sum"

    @property
    def unites(self) -> bool:
        """Whether the rule takes the largest displacement that any frame showed."""
        return self is not GatherMethod.SIGNED_SUM


@dataclass(frozen=True, slots=True)
class GatherSettings:
    """Settings of gathering.

    Attributes:
        rows: Rows of the model's patch grid.
        cols: Columns of the model's patch grid.
        patch: Side of a patch in pixels of the model's input.
        rule: How the displacements of several frames are combined.
        residual: Also measure the residual R, which needs the luma of every frame.
        cell: Side of a cell in pixels of the coded picture. 0: for union 8, the smallest block that FFmpeg
            reports; for signed-sum 16, a macroblock, or 8 if the picture is less than 240 pixels wide or
            high.
        intra_share: With signed-sum, a cell is new content if it and most of its neighbours were intra in at
            least two P-frames, and in at least this share of the P-frames since the last sample.
        intra_limit: If more than this share of all cells was intra (noise, exposure, a cut), intra blocks are
            uninformative, and the sample is judged by luma.
    """

    rows: int
    cols: int
    patch: int
    rule: GatherMethod = GatherMethod.SIGNED_SUM
    residual: bool = False
    cell: int = 0
    intra_share: float = 0.3
    intra_limit: float = 0.25

    def __post_init__(self) -> None:
        if min(self.rows, self.cols, self.patch) < 1 or self.cell < 0 or not 0 <= self.intra_share <= 1:
            raise ValueError(f"rows, cols, patch, cell or intra_share is out of range: {self}")

    def cells(self, geometry: Geometry) -> Cells:
        """Return the cells of a coded picture."""
        fine = self.rule.unites or min(geometry.width, geometry.height) < 240
        return Cells(geometry.width, geometry.height, self.cell or (8 if fine else 16))


Frames = Sequence[tuple[VectorSource, Picture]]


class VectorChain(Protocol):
    """Displacement of every cell over one or more spans, each from one sample to the next."""

    def add(self, frames: Frames) -> None:
        """Add the blocks of consecutive inter frames to a chain that has one span."""

    @property
    def redrawn(self) -> F64:
        """Share of cells that were intra, averaged over the P-frames of each span: [spans]."""

    def displacement(self) -> tuple[F32, F32, Mask]:
        """Return (dx, dy, new): float32 [spans, rows, cols] in coded pixels, and bool [spans, rows, cols]
        where the content is new."""


class UnionChain:
    """The largest displacement that any block of any frame showed in a cell; a cell that was ever intra is
    new."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        size = cells.rows * cells.cols
        # Squared lengths: they order displacements as lengths do, without square roots.
        self._dx, self._dy, self._square = (np.zeros(size, np.float32) for _ in range(3))
        self._new = np.zeros(size, np.bool_)

    def add(self, frames: Frames) -> None:
        """Add the blocks of inter frames, in order."""
        for source, picture in frames:
            self._take(source.blocks(), picture)

    def _take(self, blocks: PredictionBlocks, picture: Picture) -> None:
        inter = blocks.take(blocks.kind != PredictionKind.INTRA)
        hit = cover(inter, self.cells)
        dx, dy = inter.dx[hit.block], inter.dy[hit.block]
        square = dx * dx + dy * dy
        order = np.argsort(square, kind="stable")  # if a cell has several entries, the last assignment wins
        cell = hit.cell[order]
        best, at = np.zeros_like(self._square), np.zeros(self._square.size, np.intp)
        best[cell], at[cell] = square[order], order
        grew = best > self._square
        self._square[grew], self._dx[grew], self._dy[grew] = best[grew], dx[at[grew]], dy[at[grew]]
        self._new |= uncovered(hit.cell, hit.area, self.cells, picture)

    @property
    def redrawn(self) -> F64:
        """Always 0, because the paper takes every intra block as new content."""
        return np.zeros(1)

    def displacement(self) -> tuple[F32, F32, Mask]:
        """Return the largest displacement, and where anything was intra."""
        shape = (1, self.cells.rows, self.cells.cols)
        return self._dx.reshape(shape), self._dy.reshape(shape), self._new.reshape(shape)


class SignedSumChain:
    """Displacements added along the P chain (list 0 only), after a 3x3 median, which also filters persistent
    intra.

    A B-frame is not a link of the chain: its displacement counts only if it is the last frame added, that is,
    the sampled one.
    """

    def __init__(self, cells: Cells, intra_share: float, spans: int = 1) -> None:
        self.cells, self.intra_share = cells, intra_share
        size = cells.rows * cells.cols
        self._sum = np.zeros((2, spans, size), np.float32)
        self._own = np.zeros((2, spans, size), np.float32)
        self._intra = np.zeros((spans, size), np.int64)
        self._links = np.zeros(spans, np.int64)
        self._half = half_areas(cells)  # a cell with less inter-coded area is new content

    def add(self, frames: Frames) -> None:
        """Add the blocks of consecutive inter frames to a chain that has one span."""
        self.add_spans([frames])

    def add_spans(self, spans: Sequence[Frames]) -> None:
        """Add the blocks of some inter frames of every span, in order; every span must have frames. All spans
        are added together, because each array operation has a fixed cost."""
        frames = [frame for span in spans for frame in span]
        counts = np.array([len(span) for span in spans])
        links = np.array([picture is not Picture.B for _, picture in frames])
        blocks, owner = joined([source for source, _ in frames])
        past = (blocks.source < 0) & (blocks.kind != PredictionKind.INTRA)
        if not past.all():
            blocks, owner = blocks.take(past), owner[past]
        hit = cover(blocks, self.cells)
        size = self.cells.rows * self.cells.cols
        frame = owner[hit.block]
        place = frame * size + hit.cell
        area = np.bincount(place, hit.area, len(frames) * size)
        # Only P-frames show new content: in a B-frame, an uncovered cell may be predicted from its list 1.
        new = (area.reshape(len(frames), size) < self._half) & links[:, None]
        ends = np.cumsum(counts)
        self._intra += np.add.reduceat(new, ends - counts, axis=0, dtype=np.int64)
        self._links += np.add.reduceat(links, ends - counts, dtype=np.int64)
        # A B-frame's displacement counts only if it is the last frame of its span, that is, the sampled one.
        self._own[:] = 0
        dx, dy = blocks.dx[hit.block], blocks.dy[hit.block]
        moves = np.flatnonzero((dx != 0) | (dy != 0))  # most blocks of a fixed camera stand still
        if not len(moves):
            return
        frame, weight = frame[moves], hit.area[moves] / np.maximum(area[place[moves]], 1)
        span = np.repeat(np.arange(len(spans)), counts)[frame]
        cell = span * size + hit.cell[moves]
        linked = links[frame]
        sampled = ~linked & (frame == ends[span] - 1)
        for axis, d in enumerate((dx, dy)):
            part = weight * d[moves]
            self._sum[axis] += self._spread(cell[linked], part[linked])
            if sampled.any():
                self._own[axis] = self._spread(cell[sampled], part[sampled])

    def _spread(self, cell: Index, part: F64) -> F32:
        """Return the sum of `part` per cell of each span, [spans, cells]."""
        sums = np.bincount(cell, part, self._intra.size)
        return sums.astype(np.float32).reshape(self._intra.shape)

    @property
    def redrawn(self) -> F64:
        """Share of cells that were intra, averaged over the P-frames of each span: [spans]."""
        return np.asarray(self._intra.mean(axis=1) / np.maximum(1, self._links), np.float64)

    def displacement(self) -> tuple[F32, F32, Mask]:
        """Return the summed displacement after the median, and where content is persistently intra."""
        shape = (-1, self.cells.rows, self.cells.cols)
        dx, dy = median3x3((self._sum + self._own).reshape(2, *self._intra.shape[:1], *shape[1:]))
        links = np.maximum(self._links, 1)
        # At least two frames, unless the span has only one, because a single intra block is often only the
        # encoder's choice, not new content.
        least = np.minimum(np.maximum(2, np.ceil(self.intra_share * self._links)), links)
        intra = (self._intra >= least[:, None]).reshape(shape).astype(np.uint8)
        return dx, dy, median3x3(intra).astype(np.bool_)


def median3x3(values: Values) -> Values:
    """Return the median of every 3x3 neighbourhood, with the border repeated: [..., rows, cols] -> the same
    shape.

    Columns of three are sorted first. The median of the nine is the median of three values: the largest
    column minimum, the median of the column medians, and the smallest column maximum.
    """
    if not values.any():  # common: nothing moves, and zeros stay zeros
        return values
    low, middle, high = _sorted3(*_shifted(values, axis=-2))
    low = _sorted3(*_shifted(low, axis=-1))[2]
    middle = _sorted3(*_shifted(middle, axis=-1))[1]
    high = _sorted3(*_shifted(high, axis=-1))[0]
    return _sorted3(low, middle, high)[1]


def largest3x3(values: Values) -> Values:
    """Return the largest value of every 3x3 neighbourhood: [..., rows, cols] -> the same shape."""
    rows = _sorted3(*_shifted(values, axis=-2))[2]
    return _sorted3(*_shifted(rows, axis=-1))[2]


def _shifted(values: Values, axis: int) -> tuple[Values, Values, Values]:
    """Return the previous neighbours, the values and the next neighbours along an axis, with the border
    repeated."""
    wide = np.concatenate([values.take([0], axis), values, values.take([-1], axis)], axis=axis)
    count = values.shape[axis]
    before, at, behind = (
        wide[..., n : n + count, :] if axis == -2 else wide[..., n : n + count] for n in range(3)
    )
    return before, at, behind


def _sorted3(a: Values, b: Values, c: Values) -> tuple[Values, Values, Values]:
    """Return least, middle and largest of three arrays, element by element."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    middle = np.maximum(low, np.minimum(high, c))
    return np.minimum(low, c), middle, np.maximum(high, c)


@lru_cache(maxsize=16)
def half_areas(cells: Cells) -> F32:
    """Return half of each cell's area inside the picture, in pixels: float32 [rows * cols]."""
    _, _, w, h = cells.boxes()
    half = 0.5 * w * h
    half.setflags(write=False)
    return half


def uncovered(cell: Index, area: F32, cells: Cells, picture: Picture) -> Mask:
    """Return the cells with new content, bool [rows * cols]: in a P-frame, cells of which inter blocks cover
    less than half of the area. In a B-frame, none."""
    if picture is Picture.B:
        return np.zeros(cells.rows * cells.cols, np.bool_)
    return np.asarray(np.bincount(cell, area, cells.rows * cells.cols) < half_areas(cells), np.bool_)


@dataclass
class MotionGather:
    """Gathers the block maps of one segment into motion V and, if requested, residual R, at each sample.

    Both are on the patch grid. This is the `Gather` that decode uses. Frames are processed together, once
    motions are requested or too many frames wait, because many small frames cost hardly more than one.
    """

    settings: GatherSettings
    _geometry: Geometry | None = field(default=None, repr=False)
    _chain: VectorChain | None = field(default=None, repr=False)
    _map: PatchMap | None = field(default=None, repr=False)
    _cells: int = 0
    _broken: bool = True
    _waiting: list[tuple[VectorSource, Picture]] = field(default_factory=list, repr=False)
    _waiting_blocks: int = 0  # of all waiting frames
    _closed: list[tuple[int, Frames]] = field(default_factory=list, repr=False)  # with place in _motions
    _motions: list[Motion] = field(default_factory=list, repr=False)
    _luma: Luma | None = field(default=None, repr=False)
    _sampled: Luma | None = field(default=None, repr=False)

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, cols) of the patch grid."""
        return self.settings.rows, self.settings.cols

    def to_json(self) -> str:
        """Return the settings, for a decoder process."""
        return json.dumps(asdict(self.settings))

    @classmethod
    def from_json(cls, text: str) -> MotionGather:
        """Create a gather with these settings."""
        fields = json.loads(text)
        return cls(GatherSettings(**{**fields, "rule": GatherMethod(fields["rule"])}))

    @property
    def needs_all(self) -> bool:
        """Whether every frame must be pushed. False for `signed-sum`, which ignores B-frames that are not
        sampled."""
        return self.settings.rule.unites

    @property
    def needs_luma(self) -> bool:
        """Whether frames must be pushed with their luma, to measure the residual R."""
        return self.settings.residual

    def start(self, geometry: Geometry) -> None:
        """Begin a segment, or another coded size; motion since the last sample is then unknown."""
        self._settle()
        if geometry != self._geometry:
            s = self.settings
            self._map = PatchMap.of(geometry, s.cells(geometry), s.rows, s.cols, s.patch)
            cells = s.cells(geometry)
            self._cells = cells.rows * cells.cols
        self._geometry, self._broken = geometry, True
        self._waiting, self._chain = [], None
        self._luma = self._sampled = None

    def push(self, frame: FrameInfo, blocks: VectorSource | None, luma: Luma | None) -> None:
        """Add one decoded frame in presentation order."""
        if luma is not None and self.settings.residual:
            self._luma = luma.copy() if isinstance(luma, np.ndarray) else luma
        # An I-frame has no vectors, and a damaged frame or a clock jump hides movement, so the sample is
        # judged by luma.
        if blocks is None or frame.corrupt or frame.jump or frame.picture.intra:
            self._broken = True
        if self._broken or blocks is None:
            self._waiting = []
            return
        # Waiting frames cost little, and only the next sample shows whether the chain is unbroken.
        self._waiting.append((blocks, frame.picture))
        self._waiting_blocks += max(len(blocks), self._cells)
        if self._waiting_blocks > MOST_WAITING:
            self._settle()
            self._add_waiting()

    def sample(self, frame: FrameInfo) -> None:
        """Mark the last pushed frame as sampled. The next sample's motion is counted from it."""
        del frame  # it is the frame that was pushed last
        s, place = self.settings, len(self._motions)
        self._motions.append(Motion(Basis.LUMA))
        broken, frames, chain = self._broken, self._waiting, self._chain
        self._broken, self._waiting, self._chain = False, [], None
        if not broken:
            geometry, _ = self._started()
            if s.rule is GatherMethod.SIGNED_SUM and not s.residual and chain is None and frames:
                self._closed.append((place, frames))
            elif chain is None and not frames:  # nothing moved
                zero = np.zeros((s.rows, s.cols), np.float16)
                self._motions[place] = Motion(Basis.VECTORS, zero, zero.copy() if s.residual else None)
            else:
                chain = chain or self._new_chain()
                if frames:
                    chain.add(frames)
                (self._motions[place],) = self._moved(chain, geometry)
        self._sampled = self._luma

    def motions(self) -> list[Motion]:
        """Return the motion at every sample since the last call, in order, each relative to the sample
        before it, in model-input pixels (`UNION_CODED`: in pixels of the coded picture)."""
        self._settle()
        out, self._motions = self._motions, []
        return out

    def _settle(self) -> None:
        """Compute the motions of all waiting samples."""
        closed, self._closed = self._closed, []
        self._waiting_blocks = 0
        if not closed:
            return
        geometry, _ = self._started()
        chain = SignedSumChain(self.settings.cells(geometry), self.settings.intra_share, len(closed))
        chain.add_spans([frames for _, frames in closed])
        for (place, _), motion in zip(closed, self._moved(chain, geometry), strict=True):
            self._motions[place] = motion

    def _add_waiting(self) -> None:
        """Add the waiting frames to the chain of the next sample."""
        if self._waiting:
            self._chain = self._chain or self._new_chain()
            self._chain.add(self._waiting)
        self._waiting = []

    def _moved(self, chain: VectorChain, geometry: Geometry) -> list[Motion]:
        """Return the motion of every span of a chain."""
        s, (_, patches) = self.settings, self._started()
        redrawn = chain.redrawn > s.intra_limit
        dx, dy, new = chain.displacement()
        coded = s.rule is GatherMethod.UNION_CODED
        size = np.hypot(*((dx, dy) if coded else geometry.vectors(dx, dy))).astype(np.float32)
        # The displacement of new content is unknown, so it must exceed every threshold.
        size[new] = np.inf
        if s.rule is GatherMethod.SIGNED_SUM:
            size = largest3x3(size)
        out = [
            Motion(Basis.LUMA) if far else Motion(Basis.VECTORS, v)
            for far, v in zip(redrawn, patches.largest(size).astype(np.float16), strict=True)
        ]
        if not s.residual or self._luma is None or self._sampled is None or redrawn[0]:
            return out
        gap = compensated_difference(self._luma, self._sampled, dx[0], dy[0], s.cells(geometry).size)
        r = patch_means(gap, geometry, s.rows, s.cols, s.patch).astype(np.float16)
        return [replace(out[0], r=r)]

    def _started(self) -> tuple[Geometry, PatchMap]:
        if self._geometry is None or self._map is None:
            raise RuntimeError("MotionGather.start was not called before sample")
        return self._geometry, self._map

    def _new_chain(self) -> VectorChain:
        geometry, _ = self._started()
        cells = self.settings.cells(geometry)
        if self.settings.rule.unites:
            return UnionChain(cells)
        return SignedSumChain(cells, self.settings.intra_share)


DEFAULT_GATHER_METHOD: Final = GatherMethod.SIGNED_SUM
