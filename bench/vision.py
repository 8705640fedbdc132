"""Kept patches against the dense tower: FLOPs and CPU time in one run, on towers where compute dominates.

The dense side is the stock tower on whole frames. `python -m bench.vision [family ...]`; the last line is
JSON: for each family and keep ratio the dense CPU time over the pruned one, which holds on a busy machine
too, and the share of FLOPs left.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookout.models.families import load_tower
from lookout.models.vision import FrameInput, Grid, Tower
from tests import tiny_models

RATIOS = (1.0, 0.5, 0.25, 0.1)
# Towers of about 40 M parameters at a paper-like number of patches; the language model is not part of it.
PLAIN = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 6, "num_attention_heads": 12}
QWEN = {"hidden_size": 768, "intermediate_size": 3072, "depth": 6, "num_heads": 12}
VISION: dict[str, dict[str, Any]] = {
    "internvl": {**PLAIN, "image_size": [448, 448]},
    "qwen2_5_vl": {**QWEN, "window_size": 112, "fullatt_block_indexes": [2, 5]},
    "qwen2_vl": {"embed_dim": 768, "mlp_ratio": 4, "depth": 6, "num_heads": 12},
    "qwen3_vl": {**QWEN, "deepstack_visual_indexes": [1, 3, 5], "num_position_embeddings": 2304},
    "llava_onevision": {**PLAIN, "image_size": 378},
    "llava_next_video": {**PLAIN, "image_size": 336},
}
SIZE = {
    "internvl": 448,
    "qwen2_5_vl": 448,
    "qwen2_vl": 448,
    "qwen3_vl": 448,
    "llava_onevision": 378,
    "llava_next_video": 336,
}


def motion_mask(grid: Grid, ratio: float, random: np.random.Generator) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """A keep mask of about `ratio`, in one moving blob as real motion is, not sprinkled."""
    keep = np.zeros((grid.group_rows, grid.group_cols), dtype=np.bool_)
    count = max(1, round(ratio * keep.size))
    centre = random.random(2) * keep.shape
    rows, cols = np.indices(keep.shape)
    distance = (rows - centre[0]) ** 2 + (cols - centre[1]) ** 2
    keep.flat[np.argsort(distance, axis=None)[:count]] = True
    return keep


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def dense(tower: Any, frames: list[FrameInput]) -> Callable[[], object]:
    """The stock tower on whole frames, with the attention it is loaded with by default."""
    pixels = torch.stack([torch.from_numpy(frame.pixels) for frame in frames])
    channels = tower.normalise(pixels.permute(0, 4, 1, 2, 3), tower.dtype)  # [n, 3, t, height, width]
    model, config, grid = tower.model, tower.config, tower.grid

    def plain() -> object:
        if tower.family == "internvl":
            return model.get_image_features(
                channels[:, :, 0], vision_feature_layer=-1, vision_feature_select_strategy="default"
            )
        return model.get_video_features(
            channels[:, :, 0][None],
            vision_feature_layer=config.vision_feature_layer,
            vision_feature_select_strategy="full",
        )

    m, p = grid.merge, grid.patch
    shape = (len(frames), 3, grid.temporal, grid.group_rows, m, p, grid.group_cols, m, p)
    whole = torch.tensor([[1, grid.rows, grid.cols]] * len(frames))

    def qwen() -> object:
        rows = channels.reshape(shape).permute(0, 3, 6, 4, 7, 1, 2, 5, 8)
        return tower.vision(rows.reshape(len(frames) * grid.rows * grid.cols, -1), grid_thw=whole)

    chosen = qwen if "qwen" in tower.family else plain

    @torch.inference_mode()
    def run() -> object:
        before = tower.vision.config._attn_implementation
        tower.vision.config._attn_implementation = "sdpa"
        try:
            return chosen()
        finally:
            tower.vision.config._attn_implementation = before

    return run


def measure(tower: Tower, frames: int, repeats: int) -> dict[str, dict[str, float]]:
    random = np.random.default_rng(0)
    grid = tower.grid
    shape = (grid.temporal, grid.height, grid.width, 3)
    pixels = [random.integers(0, 256, shape, dtype=np.uint8) for _ in range(frames)]
    whole = np.ones((grid.group_rows, grid.group_cols), dtype=np.bool_)
    all_kept = [FrameInput(p, whole) for p in pixels]
    base_flops = tower.flops(all_kept)
    base_seconds = median_seconds(dense(tower, all_kept), repeats)
    out = {}
    for ratio in RATIOS:
        inputs = [FrameInput(p, motion_mask(grid, ratio, random)) for p in pixels]
        seconds = median_seconds(lambda inputs=inputs: tower.encode(inputs), repeats)
        out[str(ratio)] = {
            "speedup": round(base_seconds / seconds, 2),
            "flops": round(tower.flops(inputs) / base_flops, 4),
        }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=tuple(VISION))
    parser.add_argument("--frames", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    results = {}
    for family in arguments.families:
        with tempfile.TemporaryDirectory() as folder:
            path = tiny_models.build(family, Path(folder), vision=dict(VISION[family]))
            tower = load_tower(path, size=(SIZE[family], SIZE[family]))
            results[family] = measure(tower, arguments.frames, arguments.repeats)
        print(f"{family}: {tower.grid.rows * tower.grid.cols} patches, {tower.grid.tokens} tokens a frame")
        for ratio, row in results[family].items():
            print(
                f"  keep {ratio:>4}: {row['speedup']:5.2f}x faster, {100 * row['flops']:5.1f} % of the FLOPs"
            )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
