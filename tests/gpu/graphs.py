"""A tower's passes in padded shapes, replayed as CUDA graphs: the same tokens, and how much sooner.

On a CPU the shapes are padded and computed as usual.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench import windows
from lookout.models.vision import FrameInput, FrameTokens
from lookout.models.vision.base import BaseTower
from tests.gpu.scale import Scale, Stopwatch


def run(scale: Scale) -> dict[str, Any]:
    """Return by frames in a pass: the largest difference of a token over the largest token, milliseconds of
    both ways, and their ratio.

    Raises:
        AssertionError: Tokens differ by more than rounding.
    """
    plain, padded = scale.tower(), scale.tower()
    assert isinstance(plain, BaseTower)
    assert isinstance(padded, BaseTower)
    padded.model.load_state_dict(plain.model.state_dict())
    padded.pad_passes()
    draw, grid, out = np.random.default_rng(0), plain.grid, {}
    share = windows.levels("default")["walk"]
    for count in (1, 4, windows.FRAMES):
        inputs = [
            FrameInput(
                draw.integers(0, 256, (grid.temporal, grid.height, grid.width, 3), dtype=np.uint8),
                draw.random((grid.group_rows, grid.group_cols)) <= share[number % len(share)],
            )
            for number in range(count)
        ]
        spent: dict[str, float] = {}
        tokens: dict[str, list[FrameTokens]] = {}
        for name, tower in (("plain", plain), ("padded", padded)):
            tokens[name] = tower.encode(inputs)  # captures, and warms up
            watch = Stopwatch(scale.device)
            for _ in range(scale.windows):
                tower.encode(inputs)
            spent[name] = 1e3 * watch.lap() / scale.windows
        pairs = list(zip(tokens["plain"], tokens["padded"], strict=True))
        largest = max(float(theirs.tokens.abs().max()) for theirs, _ in pairs if theirs.tokens.numel())
        away = max(
            float((ours.tokens - theirs.tokens).abs().max())
            for theirs, ours in pairs
            if theirs.tokens.numel()
        )
        if away > 0.05 * largest:
            raise AssertionError(f"{count} frames: padded tokens differ by {away} of {largest}")
        out[f"{count} frames"] = {
            "difference": round(away / largest, 6),
            "plain_ms": round(spent["plain"], 2),
            "padded_ms": round(spent["padded"], 2),
            "plain_over_padded": round(spent["plain"] / spent["padded"], 3),
        }
    return out
