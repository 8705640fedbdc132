"""Checks whether a checkpoint fits in the memory of this machine's device."""

from __future__ import annotations

from pathlib import Path

from lookout.models import find_model
from lookout.models.checkpoint import count_weights
from lookout.models.device import default_dtype
from lookout.models.engines import UnsupportedModelError
from lookout.models.engines.sizing import GIB, find_sizing
from lookout.models.errors import ModelError


def memory_text(folder: Path) -> str:
    """Return a text that says how the memory of the GPU (without a GPU: the CPU) is divided by default
    between model and streams.

    Raises:
        ModelError: The checkpoint does not exist, is damaged, or does not fit.
    """
    path = find_model(folder)
    dtype = default_dtype("cuda")
    try:
        sizing = find_sizing(path, "cuda", dtype)
    except UnsupportedModelError as error:
        raise ModelError(str(error)) from error
    if sizing is None:
        weights = count_weights(path) * 4 / GIB
        return f"CPU, float32: weights {weights:.2g} GiB, stream KV 1 GiB"
    weights, work, kv = (size / GIB for size in (sizing.weight_bytes, sizing.work_bytes, sizing.kv_bytes))
    return (
        f"GPU, {dtype}: weights {weights:.1f} GiB, working memory for a pass {work:.1f} GiB, "
        f"stream KV {kv:.1f} GiB"
    )
