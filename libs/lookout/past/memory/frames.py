"""An append-only table of all frames and tokens that were added to a memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from lookout.past.memory.types import BornBlock, Ints


@dataclass(slots=True)
class Grown:
    """An array that grows along its last axis. Views returned earlier do not change."""

    data: Ints
    size: int = 0

    def extend(self, more: Ints) -> None:
        """Append along the last axis."""
        count = more.shape[-1]
        if self.size + count > self.data.shape[-1]:
            grown = np.empty((*self.data.shape[:-1], max(64, 2 * (self.size + count))), dtype=np.int64)
            grown[..., : self.size] = self.data[..., : self.size]
            self.data = grown
        self.data[..., self.size : self.size + count] = more
        self.size += count

    @property
    def all(self) -> Ints:
        """Everything appended so far, as a view that later appends do not change."""
        return self.data[..., : self.size]


@dataclass(frozen=True, slots=True, eq=False)
class TableMark:
    """The state of a table at some time: the number of entries in each column, and the embeddings."""

    sizes: tuple[int, ...]
    embeddings: tuple[torch.Tensor, ...]


@dataclass(slots=True)
class FrameNumbers:
    """Numbers a memory's frames and tokens in order of arrival.

    It stores each frame's stream time, block and embedding, and each token's frame and position inside the
    frame's slot.
    """

    axes: int
    times_us: Grown = field(init=False)
    blocks: Grown = field(init=False)
    token_frame: Grown = field(init=False)
    token_place: Grown = field(init=False)
    embeddings: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.times_us, self.blocks, self.token_frame = (Grown(np.zeros(0, np.int64)) for _ in range(3))
        self.token_place = Grown(np.zeros((self.axes, 0), np.int64))

    @property
    def frames(self) -> int:
        """Number of frames so far."""
        return self.times_us.size

    @property
    def tokens(self) -> int:
        """Number of tokens so far."""
        return self.token_frame.size

    def add(self, block: BornBlock) -> tuple[int, int]:
        """Append a block's frames and tokens; return the numbers of its first frame and its first token."""
        first_frame, first_token = self.frames, self.tokens
        self.times_us.extend(block.times_us)
        self.blocks.extend(np.full(block.frames, block.index, dtype=np.int64))
        self.token_frame.extend(block.frame + first_frame)
        self.token_place.extend(block.places)
        self.embeddings.append(block.embeddings)
        return first_frame, first_token

    def mark(self) -> TableMark:
        """Return the table's current state, for `cut`."""
        grown = (self.times_us, self.blocks, self.token_frame, self.token_place)
        return TableMark(tuple(column.size for column in grown), tuple(self.embeddings))

    def cut(self, mark: TableMark) -> None:
        """Remove everything that was appended since `mark` was taken."""
        grown = (self.times_us, self.blocks, self.token_frame, self.token_place)
        for column, size in zip(grown, mark.sizes, strict=True):
            column.size = size
        self.embeddings = list(mark.embeddings)

    def lookup(self, tokens: Ints) -> tuple[Ints, Ints]:
        """Return frames int64 [n] and places int64 [axes, n] of tokens, given their numbers."""
        return self.token_frame.all[tokens], self.token_place.all[:, tokens]
