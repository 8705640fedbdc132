"""Invented backdrops: cloudy textures strewn with shapes, to teach the eye what is *not* a person."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from watchbench.paint import Shapes, stamp
from watchbench.scenes import Dice

SIZE = 160


def pictures(count: int, seed: int = 11) -> Tensor:
    """``count`` pictures, float [n, 3, 160, 160] in 0..1."""
    d = Dice(seed)
    canvas = _clouds(d, count)
    _stripe(d, canvas)
    number = d.whole(0, 36, count)
    for k in range(36):
        _strew(d, canvas, k < number, ellipse=k % 2 == 0)
    return canvas.clamp_(0, 1).permute(0, 3, 1, 2).contiguous()


def _clouds(d: Dice, count: int) -> Tensor:
    """Noise of all scales, mixed from two or three colours: [n, S, S, 3]."""
    rough = d(count, 1, 1, 1, low=0.35, high=0.8)
    tone = torch.zeros(count, 1, SIZE, SIZE)
    for octave, cells in enumerate((2, 4, 8, 16, 32, 64, 128)):
        noise = torch.randn(count, 1, cells, cells, generator=d.generator)
        tone += functional.interpolate(noise, (SIZE, SIZE), mode="bicubic") * rough**octave
    tone = (tone * d(count, 1, 1, 1, low=0.3, high=1.0)).sigmoid().permute(0, 2, 3, 1)
    dark, light = d(count, 1, 1, 3), d(count, 1, 1, 3)
    grey = d(count, 1, 1, 1)
    dark, light = (c * grey + c.mean(-1, keepdim=True) * (1 - grey) for c in (dark, light))
    return dark * (1 - tone) + light * tone


def _stripe(d: Dice, canvas: Tensor) -> None:
    """Draw bars, tiles or lattices over a third of the pictures."""
    count = len(canvas)
    ruler = (torch.arange(SIZE) + 0.5) / SIZE
    for axis in (1, 2):
        angle, often, wide = (
            d(count, low=-0.4, high=0.4),
            d(count, low=3, high=24),
            d(count, low=0.05, high=0.5),
        )
        along, across = (
            (ruler[None, :, None], ruler[None, None])
            if axis == 1
            else (ruler[None, None], ruler[None, :, None])
        )
        phase = (along + angle[:, None, None] * across) * often[:, None, None] + d(count, 1, 1)
        bars = (phase % 1 < wide[:, None, None]).float() * d.chance(0.3, count, 1, 1)
        canvas += bars[..., None] * d(count, 1, 1, 1, low=-0.35, high=0.35)


def _strew(d: Dice, canvas: Tensor, mask: Tensor, ellipse: bool) -> None:
    """Draw one more shape on every picture where ``mask``."""
    n = len(canvas)
    scale = 10 ** d(n, low=-2.0, high=-0.6)
    long = scale * 10 ** d(n, low=0.0, high=0.7)
    turn = torch.where(d.chance(0.6, n), torch.zeros(n), d(n, low=-1.6, high=1.6))
    upright = d.chance(0.5, n)
    shapes = Shapes(
        torch.arange(n),
        d(n),
        d(n),
        torch.where(upright, scale, long),
        torch.where(upright, long, scale),
        turn,
        d(n, 3) * 0.6 + d(n, 1) * 0.4,
        torch.where(mask, d(n, low=0.4, high=1.0), torch.zeros(n)),
        torch.ones(n),
        ellipse=ellipse,
        corner=0.3,
        soft=0.01,
    )
    stamp(canvas, shapes)
