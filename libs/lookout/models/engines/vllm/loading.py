"""Starts vLLM on a checkpoint folder as a window engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from lookout.models.device import default_dtype, engine_device
from lookout.models.engines.admission import ModelLimits
from lookout.models.engines.shape import ModelShape, read_shape
from lookout.models.engines.sizing import GIB, WINDOW_ROWS, kv_budget
from lookout.models.engines.types import UnsupportedModelError
from lookout.models.engines.vllm import internals
from lookout.models.engines.vllm.engine import VllmEngine
from lookout.models.engines.vllm.internals import Backend
from lookout.models.families import Family, family_of, load_layout, load_tokenizer
from lookout.models.windows import Layout, WindowError


def load_engine(
    checkpoint: Path | str,
    *,
    dtype: str | None = None,
    budget_bytes: int | None = None,
    layout: Layout | None = None,
    max_rows: int = WINDOW_ROWS,
    max_batched_rows: int = 8192,
    block_size: int = 32,
    kv_cache_bytes: int | None = None,
    tensor_parallel: int = 1,
    eager: bool = True,
) -> VllmEngine:
    """Start vLLM on a stock checkpoint folder as a window engine, on the device for which its wheel was
    built.

    Args:
        checkpoint: Folder of the checkpoint.
        dtype: Data type of weights, embeddings and KV; None: `lookout.models.device.default_dtype`.
        budget_bytes: Limit on the canonical KV kept between windows, over all ranks. If it is too small for
            all streams, a stable subset stays (`lookout.models.engines.budget`). None:
            `lookout.models.engines.sizing.kv_budget`.
        layout: Replaces the checkpoint's prompt layout.
        max_rows: Maximum rows of one window with a question (80 frames of 256 tokens take about 21 500). The
            model's limit applies too.
        max_batched_rows: Rows of one step; longer windows are prefilled in chunks.
        block_size: Rows of a page of vLLM's block table.
        kv_cache_bytes: Size per rank of vLLM's block table, in which windows run; it is not part of
            `budget_bytes`. None: 1 GiB, or what `max_rows` needs if that is more.
        tensor_parallel: Number of ranks.
        eager: False: piecewise CUDA graphs and compiled layers.

    Raises:
        UnsupportedModelError: Window plans do not support the checkpoint, or vLLM is not the pinned version.
    """
    folder, place = Path(checkpoint), engine_device("vllm", "")
    dtype = dtype or default_dtype(place)
    shape = _checked_shape(folder, dtype, tensor_parallel)
    prompt, tokenizer = _prompt_of(folder, layout)
    rows = min(max_rows, shape.limit)
    table = kv_cache_bytes or max(GIB, _table_rows(rows, block_size) * shape.row_bytes // tensor_parallel)
    budget = kv_budget(
        folder, place, dtype, kv_bytes=budget_bytes,
        pass_rows=max_batched_rows, window_rows=max_rows, table_bytes=kv_cache_bytes,
    )  # fmt: skip
    backend = Backend(
        str(folder), dtype=dtype, newline=_newline(folder, family_of(shape.family)),
        max_rows=rows, max_batched_rows=max_batched_rows,
        block_size=block_size, kv_cache_bytes=table, tensor_parallel=tensor_parallel, eager=eager,
    )  # fmt: skip
    rows = min(rows, backend.capacity)
    limits = ModelLimits(prompt, shape.hidden, shape.deepstack, shape.limit, rows, layerwise=False)
    return VllmEngine(backend, shape, limits, tokenizer, budget_bytes=budget)


def _prompt_of(folder: Path, layout: Layout | None) -> tuple[Layout, Any]:
    """Return the checkpoint's prompt layout, unless `layout` replaces it, and its tokenizer.

    Raises:
        UnsupportedModelError: Window plans do not support the checkpoint, or its tokenizer cannot be used.
    """
    try:
        return layout or load_layout(folder), load_tokenizer(folder)
    except WindowError as error:
        raise UnsupportedModelError(str(error)) from error


def _table_rows(rows: int, block_size: int) -> int:
    """Rows, in whole pages, for a window; one extra page, because vLLM reserves the first."""
    return (-(-rows // block_size) + 1) * block_size


def _checked_shape(folder: Path, dtype: str, ranks: int) -> ModelShape:
    """Read the shape of a checkpoint and check that this vLLM can run it.

    Raises:
        UnsupportedModelError: This vLLM cannot run it.
    """
    installed = internals.installed_version()
    if installed != internals.VERSION:
        raise UnsupportedModelError(
            f"the vLLM engine is written for vllm {internals.VERSION}, but {installed} is installed: "
            "install the pinned version"
        )
    shape = read_shape(folder, dtype)
    if shape.kv_heads % ranks:
        raise UnsupportedModelError(
            f"{folder}: {shape.kv_heads} key heads cannot be split over {ranks} ranks"
        )
    return shape


def _newline(folder: Path, family: Family) -> torch.Tensor | None:
    """Return the model's learned newline; None if its prompt has none."""
    if not family.prompt.newline:
        return None
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as weights:
            for name in family.newline_weights:
                if name in weights.keys():  # noqa: SIM118 - not a dict
                    weight: torch.Tensor = weights.get_tensor(name)
                    return weight
    raise UnsupportedModelError(f"{folder} lacks the learned newline's weight, {family.newline_weights[0]}")
