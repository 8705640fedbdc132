"""The KV of one stream: canonical keys and values in prompt order, moved and rewritten in place."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from lookout.disk import write_file
from lookout.models.engines.transformers.model import LanguageModel
from lookout.models.engines.types import StreamLostError
from lookout.models.windows.types import Rows, WindowPlan
from lookout.past.memory.types import raw

ROUND = 64
"""Rows are allocated in multiples of this, so that a slightly longer window needs no new memory."""


@dataclass(frozen=True, slots=True)
class Spilled:
    """A window on disk.

    The file has K of every layer, then V of every layer, each of `shape` [kv_heads, rows, head_dim] and
    `dtype`. `size` is its length in bytes and `checksum` its BLAKE2b digest. The file is not used after this
    process ends, so this record is its only index.
    """

    path: Path
    size: int
    layers: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    checksum: bytes


@dataclass(slots=True, eq=False)
class StreamKV:
    """The KV of one stream.

    Attributes:
        stream: Name of the stream.
        window: Number of the last window that was started.
        digest: Digest of the plan that produced the rows; empty while a later window is in progress.
        placed: Digest of the plan in progress, once all the rows that it reuses are in place; otherwise
            empty.
        rows: Number of rows in use: rows [0, rows) hold the window.
        keys: Per layer K (un-rotated), [kv_heads, capacity, head_dim].
        values: Per layer V, same shape.
        spilled: The file that has the rows instead, if they are on disk.
    """

    stream: str
    window: int = -1
    digest: str = ""
    placed: str = ""
    rows: int = 0
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    spilled: Spilled | None = None

    @property
    def capacity(self) -> int:
        """Rows allocated."""
        return self.keys[0].shape[1] if self.keys else 0

    @property
    def spilled_bytes(self) -> int:
        """Bytes on disk."""
        return 0 if self.spilled is None else self.spilled.size

    @property
    def device_bytes(self) -> int:
        """Bytes allocated on the device."""
        return sum(part.numel() * part.element_size() for part in (*self.keys, *self.values))

    def bytes_for(self, model: LanguageModel, rows: int) -> int:
        """Bytes allocated on the device once the window has `rows` rows."""
        return (self.capacity if self._fits(rows) else _rounded(rows)) * model.row_bytes

    def place(self, model: LanguageModel, plan: WindowPlan) -> None:
        """Move the plan's reused rows to their places and make room for its other rows.

        A window on disk is read back first, unless the plan reuses none of it.

        The rows belong to no plan until `finish`, so if a move fails halfway, no plan can continue this KV. A
        complete move is not repeated, so that a batch that fails later can run again.

        Rows are moved in place. The only scratch memory is the moved rows of one layer's K or V, allocated
        before anything moves. A window that outgrows the capacity, or fills less than half of it, is
        reallocated layer by layer.

        Raises:
            StreamLostError: The plan continues another window than the one held, or that window cannot be
                read back.
        """
        if plan.parent is not None:
            self.restore(model.device)
        if self.keys and plan.digest in {self.digest, self.placed}:
            return
        if plan.parent is None:
            self._clear()
        elif self.digest != plan.parent:
            raise StreamLostError(
                f"{self.stream}: an earlier window failed while the stream's KV was being moved: "
                "plan a key window"
            )
        target = np.flatnonzero(plan.source >= 0)
        # No digest while rows move, because a failure halfway leaves KV that no plan may continue.
        self.digest, self.placed, self.window = "", "", plan.window
        self._move(model, plan.rows, plan.source[target], target)
        self.rows, self.placed = plan.rows, plan.digest

    def finish(self, plan: WindowPlan) -> None:
        """Mark all rows of the plan as computed: other plans may now continue it."""
        self.digest, self.placed, self.window = plan.digest, "", plan.window

    def _fits(self, rows: int) -> bool:
        return bool(self.keys) and self.capacity >= rows and self.capacity <= 2 * _rounded(rows)

    def _clear(self) -> None:
        """Prepare for a key window, which reuses nothing: delete a spilled file, and drop layers of unequal
        size."""
        self.forget()
        if len({part.shape[1] for part in (*self.keys, *self.values)}) > 1:
            self.keys, self.values = [], []

    def _move(self, model: LanguageModel, rows: int, source: Rows, target: Rows) -> None:
        """Move rows `source` to `target`, both ascending."""
        fits = self._fits(rows)
        if not self.keys:
            shape = (model.kv_heads, _rounded(rows), model.head_dim)
            keys = [torch.zeros(shape, dtype=model.dtype, device=model.device) for _ in model.layers]
            self.keys, self.values = keys, [torch.zeros_like(part) for part in keys]
        elif not fits or not np.array_equal(source, target):
            start = torch.from_numpy(source).to(model.device)
            end = torch.from_numpy(target).to(model.device)
            like = self.keys[0]
            # Only one layer's rows are copied at a time, because a window may fill most of the device.
            scratch = like.new_empty(like.shape[0], len(source), like.shape[2])
            for parts in (self.keys, self.values):
                for index, old in enumerate(parts):
                    torch.index_select(old, 1, start, out=scratch)
                    if not fits:
                        parts[index] = old.new_zeros(old.shape[0], _rounded(rows), old.shape[2])
                    parts[index].index_copy_(1, end, scratch)

    def spill(self, folder: Path) -> None:
        """Move the window to a file, from which `restore` reads it back bit for bit.

        K or V of one layer is copied at a time, because a window is spilled when memory is short.

        Raises:
            OSError: The file cannot be written; the window stays on the device.
        """
        state, size = hashlib.blake2b(digest_size=16), 0

        def parts() -> Iterator[memoryview]:
            nonlocal size
            for part in (*self.keys, *self.values):
                data = raw(part[:, : self.rows]).data
                state.update(data)
                size += len(data)
                yield data

        path, like = folder / f"{uuid.uuid4().hex}.kv", self.keys[0]
        # Not synced, because only this process reads the file again, and a crash loses the stream anyway.
        write_file(path, parts(), sync=False)
        shape = (like.shape[0], self.rows, like.shape[2])
        self.spilled = Spilled(path, size, len(self.keys), shape, like.dtype, state.digest())
        self.keys, self.values = [], []

    def restore(self, device: torch.device) -> None:
        """Read a spilled window back to the device and delete its file. If the device runs out of memory, the
        error is raised and the file is kept.

        Raises:
            StreamLostError: The file cannot be read, or its contents have changed since it was written.
        """
        spilled = self.spilled
        if spilled is None:
            return
        state, parts = hashlib.blake2b(digest_size=16), []
        try:
            with spilled.path.open("rb") as file:
                for _ in range(2 * spilled.layers):
                    part = torch.empty(spilled.shape, dtype=spilled.dtype)
                    data = raw(part).data
                    if file.readinto(data) != len(data):
                        raise OSError("the file is cut short")
                    state.update(data)
                    parts.append(part.to(device))
            # If a disk returns changed bytes, plan a key window instead of giving a wrong answer.
            if state.digest() != spilled.checksum:
                raise OSError("the checksum does not match")
        except OSError as error:
            raise StreamLostError(
                f"{self.stream}: its KV could not be read from disk ({error}): plan a key window"
            ) from error
        self.keys, self.values = parts[: spilled.layers], parts[spilled.layers :]
        self.forget()

    def forget(self) -> None:
        """Delete the spilled file."""
        if self.spilled is not None:
            self.spilled.path.unlink(missing_ok=True)
        self.spilled = None

    def drop(self) -> None:
        """Drop all KV, in memory and on disk: no plan can continue it."""
        self.forget()
        self.digest = self.placed = ""
        self.keys, self.values = [], []


def _rounded(rows: int) -> int:
    """Rows to allocate for a window of `rows` rows."""
    return -(-rows // ROUND) * ROUND
