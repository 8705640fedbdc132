"""Landmarks: the mean keys of a chapter's visual clusters, with times, by which searches rank spans.

Redis has the landmarks of all chapters, so that spans of many cameras are ranked before any KV is read. Each
block in a growing chapter's window counts as a cluster, so that the chapter is ranked up to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Final

import numpy as np
import torch

from lookout.past.memory.catalogue import Files, LayerScenes
from lookout.past.memory.container import described_arrays, file_parts
from lookout.past.memory.errors import HistoryError
from lookout.past.memory.packing import pack
from lookout.past.memory.past import Chapter
from lookout.past.memory.types import Ints, KVShape

FORMAT = 1
LAYERS = 4
"""Number of layers to compare, evenly spaced over the upper half of the model. Lower layers rank worse, and
rank spans in the same order for different questions (docs/find.md)."""
KEPT_EVERY: Final = 4
"""One in this many clusters is kept as a landmark. That ranks moments as well as keeping all
(docs/find.md)."""
SAMPLE: Final = 1024
"""Approximate number of clusters from which the directions of a `KeySpace` are computed."""
_INFINITE: Final = 0x7C00
"""The exponent bits of a float16. Only infinities and NaN have all of them set."""
DIRECTIONS: Final = 16
"""Number of directions along which keys are compared. More directions do not rank better, because keys vary
along few directions and neighbouring layers are similar (docs/find.md)."""


@dataclass(frozen=True, slots=True, eq=False)
class Landmarks:
    """The data that ranking needs about some of a chapter's visual clusters, in order of time.

    Attributes:
        keys: float16 [layers, clusters, width], mean raw key of each cluster. In a `KeySpace`, float32
            [1, clusters, directions].
        layers: int64 [layers], numbers of the layers in the model.
        begin_us: int64 [clusters], wall time of each cluster's first frame (Unix microseconds).
        end_us: int64 [clusters], wall time of each cluster's last frame.
        tokens: int64 [clusters], number of each cluster's tokens in one layer.
        version: version of the chapter.
        model_digest: digest of the model that computed the keys.
    """

    keys: np.ndarray
    layers: Ints
    begin_us: Ints
    end_us: Ints
    tokens: Ints
    version: int
    model_digest: str = ""

    def __len__(self) -> int:
        return len(self.begin_us)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays whose size depends on the number of clusters."""
        return sum(own.nbytes for own in (self.keys, self.begin_us, self.end_us, self.tokens))

    def part(self, places: slice | Ints) -> Landmarks:
        """Return the landmarks at these places; with a slice, the arrays are views."""
        return replace(
            self,
            keys=self.keys[:, places],
            begin_us=self.begin_us[places],
            end_us=self.end_us[places],
            tokens=self.tokens[places],
        )

    def packed(self) -> bytes:
        """Pack the landmarks into bytes, as Redis stores them."""
        arrays = {
            "keys": self.keys,
            "layers": self.layers,
            "begin": self.begin_us,
            "end": self.end_us,
            "tokens": self.tokens,
        }
        header = {"format": FORMAT, "version": self.version, "model_digest": self.model_digest}
        return pack(header, arrays)

    @classmethod
    def unpacked(cls, data: bytes, where: str) -> Landmarks:
        """Unpack landmarks from untrusted bytes. Its arrays are views of the bytes.

        Raises:
            HistoryError: The value is damaged, or not valid landmarks.
        """
        head, body = file_parts(data, where)
        try:
            layout = _layout(head)
            keys, layers, begin_us, end_us, tokens = (
                np.frombuffer(body, kind, prod(shape), place).reshape(shape)
                for kind, shape, place in layout.columns
            )
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise HistoryError(f"{where}: these are not valid landmarks: {error!r}") from error
        infinite = keys.view(np.uint16) & _INFINITE == _INFINITE
        if infinite.any() or not (begin_us <= end_us).all():
            raise HistoryError(
                f"{where}: these are not valid landmarks: a key is infinite or NaN, or a time range is "
                "reversed"
            )
        return cls(keys, layers, begin_us, end_us, tokens, layout.version, layout.model_digest)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The header of packed landmarks.

    Attributes:
        columns: Type, shape and first byte in the body for keys, layers, begin, end and tokens.
        version: Version of the chapter.
        model_digest: Digest of the model.
    """

    columns: tuple[tuple[str, tuple[int, ...], int], ...]
    version: int
    model_digest: str


@lru_cache(maxsize=1 << 12)
def _layout(head: bytes) -> _Layout:
    """Parse a header. Results are cached, because many chapters have equal headers.

    Raises:
        ValueError: The shapes do not match. Invalid headers also raise AttributeError, KeyError,
            RecursionError and TypeError.
    """
    header, places = described_arrays(head)
    columns = tuple(places[name] for name in ("keys", "layers", "begin", "end", "tokens"))
    kinds, shapes, _ = zip(*columns, strict=True)
    layers, count, _ = shapes[0]
    fits = shapes[1:] == ((layers,), (count,), (count,), (count,))
    if not fits or kinds != ("float16", *["int64"] * 4) or not all(0 <= side < 1 << 31 for side in shapes[0]):
        raise ValueError("the shapes or types of its arrays are wrong")
    return _Layout(columns, int(header["version"]), str(header["model_digest"]))


@dataclass(frozen=True, slots=True, eq=False)
class KeySpace:
    """The directions along which clusters' keys vary most (principal components over all compared layers).

    A reader of many landmarks stores their keys as coordinates along these directions: one layer of width
    `DIRECTIONS` instead of several wide layers.

    Attributes:
        layers: int64 [layers], the compared layers.
        middle: float32 [layers, 1, width], mean key of each layer.
        directions: float32 [layers * width, directions], orthonormal directions of keys divided by `spread`.
        spread: float32 [layers, 1, 1], standard deviation of the keys of each layer.
        sample: float32 [layers, clusters, width], some keys minus `middle`, used to scale scores.
        product: float32 [layers, width, directions], `directions` by layer, divided by `spread`.
        offset: float32 [directions], `middle` multiplied by `product`, subtracted from converted keys.
    """

    layers: Ints
    middle: np.ndarray
    directions: np.ndarray
    spread: np.ndarray
    sample: np.ndarray
    product: torch.Tensor
    offset: torch.Tensor

    @classmethod
    def of(cls, landmarks: Sequence[Landmarks]) -> KeySpace:
        """Compute the space from landmarks of one model. There must be at least one cluster."""
        keys = np.concatenate([mark.keys for mark in landmarks], 1)
        keys = keys[:, :: max(1, keys.shape[1] // SAMPLE)].astype(np.float32)
        middle = keys.mean(1, keepdims=True)
        sample = keys - middle
        spread = np.maximum(np.sqrt((sample**2).mean((1, 2), keepdims=True)), 1e-6)
        flat = torch.from_numpy(_flattened(sample / spread))
        count = min(DIRECTIONS, *flat.shape)
        # Use torch, because numpy's BLAS uses all cores of the machine.
        directions = torch.linalg.svd(flat, full_matrices=False)[2][:count].T.contiguous()
        product = directions.view(len(spread), -1, count) / torch.from_numpy(spread)
        offset = (torch.from_numpy(middle) @ product).sum((0, 1))
        layers = landmarks[0].layers.copy()
        return cls(layers, middle, directions.numpy(), spread, sample, product, offset)

    def fits(self, own: Landmarks) -> bool:
        """Whether landmarks have the layers and the width of this space."""
        return np.array_equal(own.layers, self.layers) and own.keys.shape[2] == self.middle.shape[2]

    def landmarks(self, own: Landmarks) -> Landmarks:
        """Convert landmarks to this space: their keys become float32 [1, clusters, directions]."""
        return replace(own, keys=self._in_space(own.keys).numpy()[None], layers=np.zeros(1, np.int64))

    def keys(self, keys: torch.Tensor) -> torch.Tensor:
        """Convert keys [layers of the model, width] to this space: [1, directions]."""
        return self._in_space(keys[torch.from_numpy(self.layers)].float().numpy()[:, None])

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """Convert queries [layers of the model, width] to this space: [1, directions].

        The scores of each layer are divided by their standard deviation over the sample, so that all layers
        have the same weight.
        """
        own = queries[torch.from_numpy(self.layers)].float().numpy()[:, :, None]
        deviation = (self.sample @ own).std(1, keepdims=True)
        scaled = own.transpose(0, 2, 1) * self.spread / np.where(deviation > 0, deviation, 1.0)
        return torch.from_numpy(_flattened(scaled) @ self.directions)

    def _in_space(self, keys: np.ndarray) -> torch.Tensor:
        """Project keys [layers, clusters, width] onto the directions: [clusters, directions]."""
        own = torch.from_numpy(keys if keys.flags.writeable else keys.copy())
        return (own.float() @ self.product).sum(0) - self.offset


def _flattened(keys: np.ndarray) -> np.ndarray:
    """Reshape keys [layers, clusters, width] to [clusters, layers * width]."""
    return keys.transpose(1, 0, 2).reshape(keys.shape[1], -1)


def joined(landmarks: Sequence[Landmarks]) -> Landmarks:
    """Join landmarks of one or more chapters into one; all have the same layers."""
    return replace(
        landmarks[0],
        keys=np.concatenate([mark.keys for mark in landmarks], 1),
        begin_us=np.concatenate([mark.begin_us for mark in landmarks]),
        end_us=np.concatenate([mark.end_us for mark in landmarks]),
        tokens=np.concatenate([mark.tokens for mark in landmarks]),
    )


@dataclass(slots=True, eq=False)
class CameraPast:
    """What ranking knows about a camera's past, from Redis.

    Attributes:
        chapters: Wall times of the first and last frame of each chapter (Unix microseconds).
        landmarks: Landmarks of the chapters that have any.
    """

    chapters: list[tuple[int, int]] = field(default_factory=list)
    landmarks: list[Landmarks] = field(default_factory=list)

    def covers(self, begin_us: int, end_us: int) -> bool:
        """Whether any chapter overlaps a time range."""
        return any(first < end_us and last >= begin_us for first, last in self.chapters)


def landmarks_of(chapter: Chapter, files: Files, every: int = KEPT_EVERY) -> Landmarks:
    """Compute the landmarks of a chapter.

    Args:
        chapter: The chapter, growing or sealed.
        files: Reads the chapter's bytes.
        every: One in this many clusters is kept, always including the newest.

    Raises:
        HistoryError: The chapter's bytes are not available.
    """
    head, shape = chapter.head, chapter.head.shape
    blocks = [block for block in head.window if block.rows]
    layers = compared_layers(shape.layers)
    compared = [head.scenes[layer] for layer in layers]
    places = [place for place, _ in compared]
    places += [block.data[layer] for layer in layers for block in blocks]
    data = iter(files.read(places))
    scenes = [LayerScenes.unpacked(next(data), visual, shape) for _, visual in compared]
    keys = np.stack(
        [
            np.concatenate([own.keys.float().numpy(), *(_mean_key(next(data), shape) for _ in blocks)])
            for own in scenes
        ]
    )
    first = np.concatenate([scenes[0].frames[0], [block.first_frame for block in blocks]]).astype(np.int64)
    ends = [block.first_frame + block.frames - 1 for block in blocks]
    last = np.concatenate([scenes[0].frames[1], ends]).astype(np.int64)
    tokens = np.concatenate([scenes[0].counts.numpy(), [block.rows for block in blocks]]).astype(np.int64)
    order = np.argsort(first, kind="stable")
    order = order[(len(order) - 1) % every :: every]
    times = head.times_us + chapter.origin_us
    return Landmarks(
        keys=keys[:, order].astype(np.float16),
        layers=layers,
        begin_us=times[first[order]],
        end_us=times[last[order]],
        tokens=tokens[order],
        version=head.version,
        model_digest=str(head.about.get("model_digest", "")),
    )


def compared_layers(count: int) -> Ints:
    """Return the numbers of the layers to compare, int64, ascending. `count` is the model's number of
    layers."""
    layers: Ints = np.unique(np.linspace(count // 2, count - 1, LAYERS).round().astype(np.int64))
    return layers


def _mean_key(data: bytes, shape: KVShape) -> np.ndarray:
    """Compute the mean key [1, width] of a block's rows in one layer."""
    rows = torch.frombuffer(bytearray(data), dtype=shape.dtype).view(-1, 2, shape.width)
    mean: np.ndarray = rows[:, 0].to(shape.wide).mean(0, keepdim=True).numpy()
    return mean
