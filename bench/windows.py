"""FLOPs that masks, refresh and both save in windows of a full-size model, for three clips.

Run `make bench-windows` or `python -m bench.windows`. The workload is the papers': windows of 40 s, strides
of 8 s, 2 FPS, 98 tokens per frame, Qwen2.5-7B with InternVL's vision tower. FLOPs are counted; no model runs.
Shares of kept tokens come from real clips (`motion.json`), with three kinds of mask: the default (pixels,
since encoded), motion vectors since the anchor (the paper), and motion vectors since encoded.

Every figure is the mean over one cycle of the clip (five windows), because strides differ in how much moves.
Key windows are included: one of every 30 windows is computed in full, under the same masks. The last line is
JSON: per clip and setting, the share saved compared with every token of every window.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bench.shapes import QWEN_7B, VIT_300M
from lookout.models.engines import Question
from lookout.models.engines.costs import window_cost
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.engines.transformers.model import take_language_model
from lookout.models.families import load_layout
from lookout.models.flops import DecoderShape
from lookout.models.windows import (
    DEFAULT_PRESET,
    PRESETS,
    WHOLE as WHOLE_POLICIES,
    EncodedFrame,
    LabelStyle,
    Layout,
    Planner,
    Policy,
    StrideBlock,
    WindowSettings,
)
from tests.tiny_models import checkpoint

FRAMES, BLOCKS, STRIDE_S = 16, 5, 8.0
WHOLE = (7, 14)
#: clips of :data:`MOTION`: people cross a lobby, a bedroom at night, a fall at night. The noise of a night
#: has motion vectors: the paper's masks keep the least of the walk, the default's the most
LEVELS = ("walk", "night", "fall")
MOTION = Path(__file__).with_name("motion.json")
PERIOD = WindowSettings().key_every  # one window in so many is a key window
VIT_PATCHES = 4  # behind one visual token of InternViT-300M
QUESTION = Question("q", "Is anyone lying?")


SHAPES = {
    "tiny": {"hidden": 64, "intermediate": 128, "layers": 2, "heads": 2, "kv_heads": 1},
    "small": {"hidden": 256, "intermediate": 3072, "layers": 4, "heads": 4, "kv_heads": 2},
    "7b": {"hidden": 3584, "intermediate": 18944, "layers": 28, "heads": 28, "kv_heads": 4},
}


def model(
    shape: str, device: torch.device, dtype: torch.dtype, *, layers: int | None = None
) -> TransformersEngine:
    """A random InternVL of a shape, made where it will run; its prompt with the labels of that size. With
    `layers`, only so many decoder layers."""
    told = SHAPES[shape] | ({} if layers is None else {"layers": layers})
    folder = checkpoint("internvl")
    # Not at the head: stock models import compilers, and tests read this module's plans alone.
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer

    config = AutoConfig.from_pretrained(folder)
    text = config.text_config
    text.hidden_size, text.intermediate_size = told["hidden"], told["intermediate"]
    text.num_attention_heads, text.num_key_value_heads = told["heads"], told["kv_heads"]
    text.num_hidden_layers = text.max_window_layers = told["layers"]
    text.layer_types = ["full_attention"] * told["layers"]
    with device:
        whole = AutoModelForImageTextToText.from_config(config, dtype=dtype)
    layout = replace(load_layout(folder), layers=told["layers"])
    return TransformersEngine(
        take_language_model(whole, "internvl", device),
        labelled(layout, 6 if shape == "7b" else 0),
        AutoTokenizer.from_pretrained(folder),
        budget_bytes=16 << 30,
    )


def labelled(layout: Layout, extra: int) -> Layout:
    """Labels of three digits and `extra` tokens more; nothing else around a frame."""
    digits = layout.label.digits if layout.label is not None else tuple(range(10))
    label = LabelStyle("frames", digits, 3, head=(70,) * extra)
    return replace(layout, label=label, frame_open=(), frame_close=())


def block(index: int, keep: list[float], hidden: int, grid: tuple[int, int]) -> StrideBlock:
    """A block whose frames keep the given shares of their tokens; the first is a whole anchor."""
    draw = np.random.default_rng(index)
    size, frames = grid[0] * grid[1], []
    for number in range(FRAMES):
        share = 1.0 if number == 0 else keep[(index * FRAMES + number) % len(keep)]
        mask = np.zeros(size, bool)
        mask[draw.permutation(size)[: round(share * size)]] = True
        tokens = torch.from_numpy(draw.standard_normal((int(mask.sum()), hidden)).astype(np.float32))
        time_us = (index * FRAMES + number) * 500_000
        frames.append(EncodedFrame(time_us, number == 0, mask.reshape(grid), tokens))
    return StrideBlock("bench/0", index, tuple(frames))


def ways() -> dict[str, tuple[str, WindowSettings]]:
    """The settings compared: which masks, and how windows are computed."""
    front = PRESETS[DEFAULT_PRESET]

    def budget(frames: int) -> WindowSettings:
        return replace(front, policy=Policy.FRONT, refresh_frames=frames, refresh_surplus=None)

    return {
        "default": ("default", front),
        "default, whole windows": ("default", PRESETS["whole"]),
        **{f"default masks, {frames} frames": ("default", budget(frames)) for frames in (0, 1, 2, 4, 8)},
        **{f"vectors, encoded, {frames}": ("since_encoded", budget(frames)) for frames in (1, 2, 4)},
        "codecsight": ("keep", PRESETS["codecsight"]),
    }


def full_size(
    layout: Layout,
    keep: list[float],
    policy: Policy,
    settings: WindowSettings,
    windows: int,
    *,
    shape: DecoderShape = QWEN_7B,
    questions: Sequence[int] = (12,),
    blocks: int = BLOCKS,
) -> tuple[float, float]:
    """Mean FLOPs of the same steady windows at full size, of so many blocks each: language model, with
    questions of so many tokens, and vision tower."""
    planner = Planner(replace(labelled(layout, 6), layers=shape.layers), replace(settings, policy=policy))
    seen_blocks = [block(index, keep, 1, WHOLE) for index in range(blocks + windows)]
    plan = planner.plan(seen_blocks[:blocks], key=True)
    language, vision = [], []
    for last in range(blocks + 1, len(seen_blocks) + 1):
        window = seen_blocks[last - blocks : last]
        plan = planner.plan(window, plan, key=False)
        seen = window if policy in WHOLE_POLICIES else window[-1:]
        patches = [VIT_PATCHES * frame.tokens.shape[0] + 1 for one in seen for frame in one.frames]
        vision.append(sum(VIT_300M.flops(rows, rows * rows) for rows in patches))
        language.append(window_cost(plan, questions, shape, kv_bytes=0).total_flops)
    return statistics.fmean(language), statistics.fmean(vision)


def levels(kind: str) -> dict[str, list[float]]:
    """The shares kept of every frame of the three clips, with the masks of that `kind`."""
    known = json.loads(MOTION.read_text())
    return {level: [float(share) for share in known[level][kind]] for level in LEVELS}


def counted(windows: int = 5) -> dict[str, dict[str, float]]:
    """The share of FLOPs saved at full size, with vision tower and key windows, by clip and setting."""
    layout = load_layout(checkpoint("internvl"))

    def of(keep: list[float], policy: Policy, base: WindowSettings) -> tuple[float, float]:
        sized = replace(base, blocks=BLOCKS, key_every=PERIOD, samples=FRAMES, stride_s=STRIDE_S)
        return full_size(layout, keep, policy, sized, windows)

    full = sum(of([1.0], Policy.FULL, WindowSettings()))
    out: dict[str, dict[str, float]] = {}
    for level in LEVELS:
        out[level] = {}
        for name, (masks, settings) in ways().items():
            keep = levels(masks)[level]
            language, vision = of(keep, settings.policy, settings)
            whole, _ = of(keep, Policy.PRUNE_ONLY, settings)
            out[level][name] = round(1 - (((PERIOD - 1) * language + whole) / PERIOD + vision) / full, 4)
            print(f"{level:8} {name:26} {out[level][name]:8.1%}", flush=True)
    return out


def main() -> None:
    """Count and print."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print(json.dumps({"bench": "windows", "flops_7b": counted()}))


if __name__ == "__main__":
    main()
