"""Group prefill of an hour at one frame a second, 98 tokens a frame (QuickVideo)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bench.windows import QUESTION
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.engines.transformers.prefill import GroupPrefill
from lookout.models.windows import EncodedFrame
from lookout.recordings import GroupPlanner, PrefillSettings, grouped
from tests.gpu.scale import Scale, Stopwatch, peak_bytes

RHO = 0.2


def run(scale: Scale) -> dict[str, Any]:
    """Seconds of the prefill and of a question behind it, rows, FLOPs a second, bytes."""
    engine = scale.engine()
    count, how = scale.recording, PrefillSettings(rho=RHO)
    layout = replace(engine.layout, positions=replace(engine.layout.positions, limit=1 << 30))
    planner = GroupPlanner(layout, how, count, float(count))
    rows = planner.rows(count, scale.grid[0] * scale.grid[1])
    prefill = GroupPrefill(engine, how, expected_rows=rows)
    watch, flops = Stopwatch(scale.device), 0
    for group in grouped(frames(engine, count, scale.grid), how.group_frames):
        flops += prefill.add(planner.plan("recording", group, prefill.last), group).flops
    seconds = watch.lap()
    prefill.ask([QUESTION])
    return {
        "frames": count,
        "rows": rows,
        "rho": RHO,
        "prefill_s": round(seconds, 3),
        "question_s": round(watch.lap(), 4),
        "tflops_a_second": round(flops / seconds / 1e12, 2),
        "kv_bytes": prefill.kv.kv_bytes,
        "peak_bytes": peak_bytes(scale.device),
    }


def frames(engine: TransformersEngine, count: int, grid: tuple[int, int]) -> Iterator[EncodedFrame]:
    """Random tokens, one frame a second."""
    draw = torch.Generator().manual_seed(0)
    for number in range(count):
        tokens = torch.randn(grid[0] * grid[1], engine.model.hidden, generator=draw)
        yield EncodedFrame(number * 1_000_000, number == 0, np.ones(grid, bool), tokens)
