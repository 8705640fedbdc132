"""Divides a device's memory between a model and the KV of streams."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from lookout.models.checkpoint import count_weights
from lookout.models.device import free_bytes
from lookout.models.engines.shape import read_shape
from lookout.models.engines.types import UnsupportedModelError
from lookout.models.flops import DecoderShape

GIB = 1 << 30
#: default numbers of rows, of one pass and of one window, for which memory is reserved
PASS_ROWS, WINDOW_ROWS = 16384, 32768
#: share of a GPU's free memory that is divided up; the rest allows for fragmentation in torch's allocator
_USABLE = 0.92
#: intermediate results that one row of a pass needs at the same time, in multiples of the model's width: the
#: residual, its norm, queries, keys and values, the attention's result, and gate, up and their product
_WIDTHS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How the memory of a device is divided.

    Attributes:
        dtype: Data type of weights and KV.
        weight_bytes: Weights of the whole checkpoint, vision tower included.
        work_bytes: Intermediate results of one pass, and one window's KV while it is moved.
        table_bytes: vLLM's block table; 0 for the transformers engine.
        kv_bytes: KV that streams keep between windows.
        row_bytes: KV of one row (token) over all layers.
    """

    dtype: str
    weight_bytes: int
    work_bytes: int
    table_bytes: int
    kv_bytes: int
    row_bytes: int

    @classmethod
    def of(
        cls,
        shape: DecoderShape,
        weights: int,
        dtype: str,
        free_bytes: int,
        *,
        pass_rows: int,
        window_rows: int,
        table_bytes: int | None = 0,
    ) -> Sizing:
        """Divide the free memory of a GPU.

        Args:
            shape: The shape of the language model.
            weights: Count of the checkpoint's weights (`lookout.models.checkpoint.count_weights`).
            dtype: Data type of weights and KV.
            free_bytes: Free memory before the model is loaded.
            pass_rows: Maximum rows of one pass.
            window_rows: Maximum rows of one window.
            table_bytes: vLLM's block table; None: the size that its engine chooses; 0: another engine.

        Raises:
            UnsupportedModelError: Too little is left for the KV of a single window.
        """
        size = _itemsize(dtype)
        row_bytes = shape.row_numbers * size
        work_bytes = pass_rows * (_WIDTHS * shape.hidden + 3 * shape.inner) * size + window_rows * row_bytes
        if table_bytes is None:
            table_bytes = max(GIB, window_rows * row_bytes)
        needed = weights * size + work_bytes + table_bytes
        kv_bytes = int(free_bytes * _USABLE) - needed
        if kv_bytes < window_rows * row_bytes:
            raise UnsupportedModelError(
                f"the GPU has {free_bytes / GIB:.1f} GiB free; in {dtype} the weights take "
                f"{weights * size / GIB:.1f}, a pass {(work_bytes + table_bytes) / GIB:.1f} and the KV of "
                f"one window {window_rows * row_bytes / GIB:.1f}: use a larger GPU or a smaller model, or "
                "lower LOOKOUT_BATCH_ROWS and LOOKOUT_WINDOW_ROWS"
            )
        return cls(
            dtype=dtype,
            weight_bytes=weights * size,
            work_bytes=work_bytes,
            table_bytes=table_bytes,
            kv_bytes=kv_bytes,
            row_bytes=row_bytes,
        )

    def streams(self, rows: int) -> int:
        """Number of streams whose KV is kept between windows of `rows` rows."""
        return self.kv_bytes // (rows * self.row_bytes)


def kv_budget(
    folder: Path,
    device: str,
    dtype: str,
    *,
    kv_bytes: int | None,
    pass_rows: int,
    window_rows: int,
    table_bytes: int | None = 0,
) -> int:
    """Return how many bytes of KV streams may keep on a device between windows. Call it before the model is
    loaded.

    Args:
        folder: The checkpoint.
        device: cpu, cuda or cuda:1.
        dtype: Data type of weights and KV.
        kv_bytes: The requested size; None: 1 GiB on the CPU, or all that the model leaves on a GPU.
        pass_rows: Maximum rows of one pass.
        window_rows: Maximum rows of one window.
        table_bytes: vLLM's block table; None: the size that its engine chooses; 0: another engine.

    Raises:
        UnsupportedModelError: The model does not fit, or window plans do not support it.
        ModelError: A weight file is damaged.
    """
    sizing = None
    if kv_bytes is None:
        sizing = find_sizing(
            folder, device, dtype, pass_rows=pass_rows, window_rows=window_rows, table_bytes=table_bytes
        )
    if sizing is None:
        return GIB if kv_bytes is None else kv_bytes
    return sizing.kv_bytes


def find_sizing(
    folder: Path,
    device: str,
    dtype: str,
    *,
    pass_rows: int = PASS_ROWS,
    window_rows: int = WINDOW_ROWS,
    table_bytes: int | None = 0,
) -> Sizing | None:
    """Divide the memory of a GPU (arguments as in `kv_budget`); None if `device` is not a GPU of this
    machine.

    Raises:
        UnsupportedModelError: The model does not fit, or window plans do not support it.
        ModelError: A weight file is damaged.
    """
    free = free_bytes(device)
    if free is None:
        return None
    shape = read_shape(folder, dtype)
    return Sizing.of(
        shape,
        count_weights(folder),
        dtype,
        free,
        pass_rows=pass_rows,
        window_rows=window_rows,
        table_bytes=table_bytes,
    )


def _itemsize(dtype: str) -> int:
    """Bytes of one number."""
    return torch.empty(0, dtype=getattr(torch, dtype)).element_size()
