"""The KV of one stream: canonical keys and values in prompt order, moved and rewritten in place."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from lookout.engines.transformers.model import LanguageModel
from lookout.engines.types import StreamLostError
from lookout.windows.types import Rows, WindowPlan

ROUND = 64
"""Rows are allocated in steps, so that a window a little longer than the last needs no new memory."""


@dataclass(slots=True, eq=False)
class StreamKV:
    """The KV of one stream.

    Attributes:
        stream: Name of the stream.
        window: The last window begun.
        digest: Digest of the plan that the rows are the complete result of; empty from the moment a window
            changes them until it is finished.
        placed: Digest of the plan whose reused rows are all in their places, while that window is computed.
        rows: Rows [0, rows) are the window.
        keys: Per layer K (un-rotated), [kv_heads, capacity, head_dim].
        values: Per layer V, same shape.
        spilled: The file that holds them instead.
        spilled_bytes: Its size.
    """

    stream: str
    window: int = -1
    digest: str = ""
    placed: str = ""
    rows: int = 0
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    spilled: Path | None = None
    spilled_bytes: int = 0

    @property
    def capacity(self) -> int:
        """Rows allocated."""
        return self.keys[0].shape[1] if self.keys else 0

    @property
    def device_bytes(self) -> int:
        """Bytes allocated on the device."""
        return sum(part.numel() * part.element_size() for part in (*self.keys, *self.values))

    def bytes_for(self, model: LanguageModel, rows: int) -> int:
        """Bytes allocated on the device once the window has `rows` rows."""
        return (self.capacity if self._fits(rows) else _rounded(rows)) * model.row_bytes

    def place(self, model: LanguageModel, plan: WindowPlan) -> None:
        """Move the plan's reused rows to their places and make room for its other rows.

        The rows belong to no plan until `finish`: a move that stops half way leaves KV that nothing
        continues. A complete move is not repeated, so that a batch that failed behind it can run again.

        In place: the only scratch is the moved rows of one layer's K or V, allocated before anything moves. A
        window that outgrows the capacity, or fills less than half of it, is reallocated layer by layer.

        Raises:
            StreamLostError: The plan reuses rows of a window that these rows are not (any more).
        """
        if plan.digest in {self.digest, self.placed}:
            return
        if plan.parent is None:
            self._clear()
        elif self.digest != plan.parent:
            raise StreamLostError(f"{self.stream}: an earlier window failed while its KV was moved")
        target = np.flatnonzero(plan.source >= 0)
        self.digest, self.placed, self.window = "", "", plan.window
        self._move(model, plan.rows, plan.source[target], target)
        self.rows, self.placed = plan.rows, plan.digest

    def finish(self, plan: WindowPlan) -> None:
        """All rows of the plan are computed: other plans may continue it."""
        self.digest, self.placed, self.window = plan.digest, "", plan.window

    def _fits(self, rows: int) -> bool:
        return bool(self.keys) and self.capacity >= rows and self.capacity <= 2 * _rounded(rows)

    def _clear(self) -> None:
        """Before a key window: nothing is reused, and parts of unequal size are given up."""
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
            scratch = like.new_empty(like.shape[0], len(source), like.shape[2])
            for parts in (self.keys, self.values):
                for index, old in enumerate(parts):
                    torch.index_select(old, 1, start, out=scratch)
                    if not fits:
                        parts[index] = old.new_zeros(old.shape[0], _rounded(rows), old.shape[2])
                    parts[index].index_copy_(1, end, scratch)

    def spill(self, folder: Path) -> None:
        """Move the window to a file; `restore` brings back the same bits."""
        path = folder / f"{uuid.uuid4().hex}.safetensors"
        parts = {f"k{i}": part[:, : self.rows].contiguous() for i, part in enumerate(self.keys)}
        parts |= {f"v{i}": part[:, : self.rows].contiguous() for i, part in enumerate(self.values)}
        self.spilled = path
        save_file({name: part.cpu() for name, part in parts.items()}, path)
        self.spilled_bytes = path.stat().st_size
        self.keys, self.values = [], []

    def restore(self, device: torch.device) -> None:
        """Bring a spilled window back."""
        if self.spilled is None:
            return
        parts = load_file(self.spilled, device=str(device))
        half = len(parts) // 2
        self.keys = [parts[f"k{i}"] for i in range(half)]
        self.values = [parts[f"v{i}"] for i in range(half)]
        self.forget()

    def forget(self) -> None:
        """Delete the spilled file."""
        if self.spilled is not None:
            self.spilled.unlink(missing_ok=True)
        self.spilled, self.spilled_bytes = None, 0


def _rounded(rows: int) -> int:
    """Rows allocated for `rows`."""
    return -(-rows // ROUND) * ROUND
