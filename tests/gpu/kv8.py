"""KV of streams in FP8 (e4m3, a scale for each head and row): what it changes, and what rounding costs.

A window's KV is rounded in place; then the window slides and is asked. On the shape with random weights this
gives the difference of the logits, on the trained tiny model that of p(yes) on rendered clips.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from bench import windows
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.models.engines import Answer, Question, WindowRequest, load_engine
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.families import load_tower
from lookout.models.presets import DEFAULT, preset_of
from lookout.models.windows import DEFAULT_PRESET, PRESETS, Planner, StrideBlock
from lookout.pruning import Sample
from lookout.streams import StreamBlock, StrideFrame, stream_blocks
from lookout.video.motion import Basis
from tests.gpu.scale import Scale, Stopwatch
from watchbench.training import windows as rendered

LARGEST: Final = float(torch.finfo(torch.float8_e4m3fn).max)
BLOCKS, SAMPLES, STEP_US = 5, 4, 500_000


def rounded(part: torch.Tensor) -> torch.Tensor:
    """K or V [heads, rows, head_dim] as it comes back from FP8."""
    scale = part.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST
    return ((part.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(part.dtype)


def run(scale: Scale) -> dict[str, Any]:
    """Differences at the shape and of the trained model; milliseconds of rounding a window."""
    return {"shape": _at_shape(scale), "trained": _trained(scale)}


def _at_shape(scale: Scale) -> dict[str, float]:
    engine = scale.engine()
    keep = [0.4]
    blocks = [windows.block(i, keep, engine.model.hidden, scale.grid) for i in range(windows.BLOCKS + 2)]
    plain, _, _ = _slid(engine, blocks, [windows.QUESTION], fp8=False)
    stored, error, seconds = _slid(engine, blocks, [windows.QUESTION], fp8=True, device=scale.device)
    pairs = [(a.yes_logit - a.no_logit, b.yes_logit - b.no_logit) for a, b in zip(plain, stored, strict=True)]
    engine.close()
    return {
        "kv_relative_error": error,
        "logit_difference": max(abs(a - b) for a, b in pairs),
        "round_ms_a_window": round(1e3 * seconds, 3),
    }


def _trained(scale: Scale) -> dict[str, float]:
    """|dp| of product questions over rendered clips, all of whose windows continue rounded KV."""
    engine = load_engine(TINY, scale.device, "float32")
    tower = load_tower(TINY, device=scale.device, dtype="float32")
    questions = [Question(name, text) for name, text in DEMO_QUESTIONS.items()]
    pixels, _ = rendered(scale.clips, (BLOCKS + 2) * SAMPLES, 77)
    changes = []
    for clip in (pixels * 255).round().to(torch.uint8).permute(0, 1, 3, 4, 2).numpy():
        frames = [
            StrideFrame(Sample(picture, Basis.LUMA), number * STEP_US, number)
            for number, picture in enumerate(clip)
        ]
        encoded = stream_blocks(
            "clip",
            frames,
            tower,
            preset_of(DEFAULT).masks,
            samples=SAMPLES,
            step_us=STEP_US,
            window_blocks=BLOCKS,
        )
        blocks = [member.block for member in list[StreamBlock](encoded)]
        plain, _, _ = _slid(engine, blocks, questions, fp8=False)
        stored, _, _ = _slid(engine, blocks, questions, fp8=True)
        changes += [abs(a.p_yes - b.p_yes) for a, b in zip(plain, stored, strict=True)]
    engine.close()
    return {"dp": float(np.mean(changes)), "dp_largest": max(changes), "answers": len(changes)}


def _slid(
    engine: TransformersEngine,
    blocks: list[StrideBlock],
    questions: list[Question],
    *,
    fp8: bool,
    device: torch.device | None = None,
) -> tuple[list[Answer], float, float]:
    """Answers of the windows behind the key window; relative error of the rounding and its seconds."""
    settings = replace(PRESETS[DEFAULT_PRESET], blocks=BLOCKS, key_every=10_000)
    planner, plan = Planner(engine.layout, settings), None
    answers: list[Answer] = []
    error, seconds = 0.0, 0.0
    for last in range(BLOCKS, len(blocks) + 1):
        window = blocks[last - BLOCKS : last]
        plan = planner.plan(window, plan)
        asked = engine.run([WindowRequest(plan, window, questions)])[0].unwrap().answers
        answers += asked if last > BLOCKS else ()
        if fp8:
            kv = engine.kv(plan.stream)
            watch = Stopwatch(device or engine.model.device)
            fresh = [[rounded(part) for part in parts] for parts in (kv.keys, kv.values)]
            seconds = watch.lap()
            # Rows that were rounded before change little: the largest is that of the key window.
            error = max(error, float((fresh[0][0] - kv.keys[0]).norm() / kv.keys[0].norm()))
            kv.keys, kv.values = fresh
    assert plan is not None
    engine.close_stream(plan.stream)
    return answers, error, seconds
