"""Data classes of a camera's memory: blocks of KV, and settings."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray

from lookout.past.memory.errors import HistoryError
from lookout.text import clean
from lookout.values import check_whole

Ints = NDArray[np.int64]


class ThresholdRule(StrEnum):
    """How the variance limit of a cluster depends on its size (Mosaic, section VI-A).

    The paper's formula and its words contradict each other.

    Attributes:
        FORMULA: The limit is strict for small clusters, and loose for large ones.
        WORDS: The limit is loose for small clusters, and strict for large ones.
    """

    FORMULA = "formula"
    WORDS = "words"


class SplitMode(StrEnum):
    """When a cluster that became too wide is split.

    Attributes:
        EAGER: At once. If the cluster is not on the device, it is fetched.
        DEFERRED: At once if the cluster is on the device; otherwise when a question next fetches it (the
            paper).
        RESTING: Like `DEFERRED`, but a cluster on the device continues to grow. It is split once, into as
            many parts as needed, when it has come to rest, when it leaves the device, or when a question
            fetches it.
    """

    EAGER = "eager"
    DEFERRED = "deferred"
    RESTING = "resting"


@dataclass(frozen=True, slots=True)
class KVShape:
    """The shape of one token's KV: K and V of [kv_heads, head_dim] in each layer. `axes` is the number of
    position axes."""

    layers: int
    kv_heads: int
    head_dim: int
    axes: int = 1
    dtype: torch.dtype = torch.float32

    @property
    def width(self) -> int:
        """Number of elements of a token's key in one layer, over all KV heads."""
        return self.kv_heads * self.head_dim

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's KV in one layer."""
        return 2 * self.width * self.dtype.itemsize

    @property
    def wide(self) -> torch.dtype:
        """The dtype of statistics: at least float32."""
        return torch.promote_types(self.dtype, torch.float32)


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """How a memory is built and kept. Sizes are in tokens of one layer unless said otherwise.

    Attributes:
        window: number of newest blocks that an answer reads whole (the local window); older blocks are
            clustered.
        construct: number of frames that must have left the window before the first clusters are built.
        cluster_tokens: target number of tokens per semantic cluster; the maximum is twice as many.
        visual_frames: target number of frames per visual cluster at construction; the maximum is
            `visual_cap`.
        visual_cap: number of frames at which a visual cluster is closed.
        smallest: clusters with fewer tokens are never split.
        smallest_visual: visual clusters with fewer frames accept any frame that is nearest to them.
        strict: the stricter limit of the variance, as a multiple of the layer's mean variance at
            construction.
        loose: the looser limit, in the same unit.
        visual_limit: maximum variance of a visual cluster, as a multiple of the mean visual variance at
            construction; a frame that would exceed it opens a new visual cluster.
        transition: number of tokens over which the limit moves from one value to the other (lambda in Eq. 5).
        rule: which of the two limits applies to small clusters.
        split: when clusters that became too wide are split.
        waiting: maximum number of newcomers that wait for a deferred split; if there are more, they become an
            independent cluster.
        rest: number of frames without newcomers after which a cluster has come to rest (`RESTING`).
        outgrown: a cluster on the device that exceeds its maximum by this factor is split at once
            (`RESTING`).
        resident_bytes: maximum bytes of clusters' KV on the device.
        iterations: maximum rounds of k-means.
        seed: seed of every random draw.
    """

    window: int = 5
    construct: int = 64
    cluster_tokens: int = 128
    visual_frames: int = 16
    visual_cap: int = 32
    smallest: int = 32
    smallest_visual: int = 4
    strict: float = 1.0
    loose: float = 1.5
    visual_limit: float = 2.0
    transition: float = 128.0
    rule: ThresholdRule = ThresholdRule.WORDS
    split: SplitMode = SplitMode.RESTING
    waiting: int = 64
    rest: int = 64
    outgrown: float = 3.0
    resident_bytes: int = 64 << 20
    iterations: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("window", "construct", "cluster_tokens", "visual_frames", "visual_cap", "smallest"):
            if getattr(self, name) < 1:
                raise HistoryError(f"memory settings: {name}={getattr(self, name)} must be at least 1")
        if not 0 < self.strict <= self.loose:
            raise HistoryError(
                f"memory settings: strict={self.strict} and loose={self.loose} must satisfy "
                "0 < strict <= loose"
            )

    @property
    def largest(self) -> int:
        """The cap of a semantic cluster, in tokens."""
        return 2 * self.cluster_tokens


@dataclass(frozen=True, slots=True)
class Extent:
    """What a memory covers.

    Attributes:
        frames: Number of frames so far, including those whose KV is no longer held.
        first_us: Stream time of the oldest frame whose KV is held, microseconds; None: no KV is held.
        last_us: Stream time of the newest frame; None without frames.
    """

    frames: int
    first_us: int | None
    last_us: int | None


@dataclass(frozen=True, slots=True, eq=False)
class BornBlock:
    """The KV of one stride block, as computed when the block was the newest of its window. Keys are
    un-rotated.

    The rows are all rows of the block's frames in prompt order. Text around a frame, such as its label,
    belongs to that frame like its visual rows.

    Attributes:
        stream: camera and epoch ("gate-3/0").
        index: number of the stride.
        times_us: int64 [frames], stream time of each frame.
        embeddings: float32 [frames, width], mean vision-tower token of each frame.
        frame: int64 [rows], number of each row's frame in the block.
        places: int64 [axes, rows], position of each row inside its frame's slot.
        step: int64 [axes], distance to the next frame's slot.
        extent: int64 [axes], number of positions that one frame spans.
        keys: [layers, kv_heads, rows, head_dim].
        values: [layers, kv_heads, rows, head_dim].
    """

    stream: str
    index: int
    times_us: Ints
    embeddings: torch.Tensor
    frame: Ints
    places: Ints
    step: Ints
    extent: Ints
    keys: torch.Tensor
    values: torch.Tensor

    @property
    def rows(self) -> int:
        """Number of the block's tokens."""
        return len(self.frame)

    @property
    def frames(self) -> int:
        """Number of the block's frames."""
        return len(self.times_us)

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V over all layers."""
        return 2 * self.keys.numel() * self.keys.element_size()

    def digest(self) -> str:
        """Return a digest of the content. Equal digests mean equal blocks."""
        state = hashlib.blake2b(f"{self.stream}:{self.index}".encode(), digest_size=16)
        for array in (self.times_us, self.frame, self.places, self.step, self.extent):
            state.update(np.ascontiguousarray(array).data)
        for tensor in (self.embeddings, self.keys, self.values):
            state.update(raw(tensor).data)
        return state.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The system prefix, whose KV is the same for all windows and answers.

    Attributes:
        positions: int64 [axes, rows].
        keys: [layers, kv_heads, rows, head_dim].
        values: [layers, kv_heads, rows, head_dim].
    """

    positions: Ints
    keys: torch.Tensor
    values: torch.Tensor


@dataclass(slots=True)
class MaintenanceCount:
    """Counts the work of maintaining the clusters.

    Attributes:
        deferred: how many times the split of a cluster that became too wide was deferred.
        splits: number of splits carried out.
        promoted: number of groups of waiting newcomers that became independent clusters.
        moved_bytes: bytes of KV fetched only for splits.
    """

    deferred: int = 0
    splits: int = 0
    promoted: int = 0
    moved_bytes: int = 0


def raw(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return the bytes of a tensor, uint8 [bytes], in its memory order."""
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().reshape(-1)


_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_MOST_BYTES = 1 << 60
_BYTES = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


@dataclass(frozen=True, slots=True)
class Keep:
    """Limits of the KV that a memory keeps, in seconds, bytes or both. None: no limit."""

    seconds: float | None = None
    bytes: int | None = None

    @classmethod
    def parse(cls, text: str | int) -> Keep:
        """Parse "2h", "90min", "500MB", or a number of bytes.

        Raises:
            HistoryError: the text has another form.
        """
        if not isinstance(text, str):
            return cls(bytes=check_whole("memory", text, 1, _MOST_BYTES, HistoryError))
        match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-zA-Z]+)\s*", text)
        number, unit = (float(match[1]), match[2].lower()) if match else (0.0, "")
        if unit in _UNITS and number > 0:
            return cls(seconds=number * _UNITS[unit])
        if unit in _BYTES and number > 0:
            return cls(bytes=int(number * _BYTES[unit]))
        raise HistoryError(
            f"{clean(repr(text), 60)} is neither a duration such as '2h' nor a size such as '500MB'"
        )
