"""The KV of one stream: canonical keys and values in prompt order, moved and rewritten in place."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from lookout.engines.transformers.model import LanguageModel
from lookout.windows.types import Rows

ROUND = 64
"""Rows are allocated in steps, so that a window a little longer than the last needs no new memory."""


@dataclass(slots=True, eq=False)
class StreamKV:
    """Per layer K (un-rotated) and V, [kv_heads, capacity, head_dim]; rows [0, rows) are the window."""

    stream: str
    window: int = -1
    digest: str = ""
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

    def place(self, model: LanguageModel, rows: int, source: Rows, target: Rows) -> None:
        """Move rows `source` to `target` (both ascending) and make room for `rows` in all.

        In place: the only scratch is the moved rows of one layer's K or V. A window that outgrows the
        capacity, or fills less than half of it, is reallocated layer by layer.
        """
        wanted = -(-rows // ROUND) * ROUND
        fits = self.capacity >= rows and self.capacity <= 2 * wanted
        if not self.keys:
            shape = (model.kv_heads, wanted, model.head_dim)
            make = [torch.zeros(shape, dtype=model.dtype, device=model.device) for _ in model.layers]
            self.keys, self.values = make, [torch.zeros_like(part) for part in make]
        elif not fits or not np.array_equal(source, target):
            start = torch.from_numpy(source).to(model.device)
            end = torch.from_numpy(target).to(model.device)
            for parts in (self.keys, self.values):
                for index, old in enumerate(parts):
                    moved = old.index_select(1, start)
                    if not fits:
                        parts[index] = old.new_zeros(old.shape[0], wanted, old.shape[2])
                    parts[index].index_copy_(1, end, moved)
        self.rows = rows

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
