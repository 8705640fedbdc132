"""Anti-aliased drawing of many frames at once: every shape of a batch is stamped through one signed
distance.

A canvas is a float32 tensor [frames, height, width, 3] of RGB in 0..1. Shapes are given in unit coordinates
of the picture (x right, y down, both 0..1), so that the same scene can be drawn for training at 112 x 112 and
for cameras at 448 x 448. Only the pixels of each shape's bounding box are touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shapes:
    """n shapes of one kind: rounded boxes or ellipses, at most one per frame (overlap inside one call is
    undefined).

    ``frame`` int64 [n]; ``x, y`` centre; ``half_width, half_height`` in units of the picture's height;
    ``angle`` radians; ``colour`` [n, 3]; ``alpha`` [n] 0..1; ``squash`` [n] is picture height / width of the
    filmed scene, which turns heights into widths.
    """

    frame: Tensor
    x: Tensor
    y: Tensor
    half_width: Tensor
    half_height: Tensor
    angle: Tensor
    colour: Tensor
    alpha: Tensor
    squash: Tensor
    ellipse: bool = False
    corner: float = 1.0
    soft: float = 0.0
    shade: float = 0.12


def stamp(canvas: Tensor, shapes: Shapes) -> None:
    """Blend the shapes into the canvas, in place."""
    height, width = canvas.shape[1:3]
    sx = shapes.squash * width
    cx, cy = shapes.x * width, shapes.y * height
    hw, hh = shapes.half_width.clamp(min=0.4 / height), shapes.half_height.clamp(min=0.4 / height)
    cos, sin = shapes.angle.cos(), shapes.angle.sin()
    margin = 1.0 / height + shapes.soft
    ex = ((hw * cos).abs() + (hh * sin).abs() + margin) * sx
    ey = ((hw * sin).abs() + (hh * cos).abs() + margin) * height
    x0, x1 = (cx - ex).floor().clamp(0, width).long(), (cx + ex).ceil().clamp(0, width).long()
    y0, y1 = (cy - ey).floor().clamp(0, height).long(), (cy + ey).ceil().clamp(0, height).long()
    area = (x1 - x0) * (y1 - y0) * (shapes.alpha > 0)
    total = int(area.sum())
    if total == 0:
        return
    shape = torch.repeat_interleave(torch.arange(len(area)), area)
    inside = torch.arange(total) - (area.cumsum(0) - area)[shape]
    columns = (x1 - x0)[shape]
    row = torch.div(inside, columns, rounding_mode="floor")
    px, py = x0[shape] + inside - row * columns, y0[shape] + row
    dx, dy = (px + 0.5 - cx[shape]) / sx[shape], (py + 0.5 - cy[shape]) / height
    c, s = cos[shape], sin[shape]
    u, v = dx * c + dy * s, dy * c - dx * s
    w, h = hw[shape], hh[shape]
    if shapes.ellipse:
        distance = ((u / w).square() + (v / h).square()).sqrt().sub_(1).mul_(torch.minimum(w, h))
    else:
        r = torch.minimum(w, h) * shapes.corner
        qx, qy = u.abs() - w + r, v.abs() - h + r
        distance = torch.hypot(qx.clamp(min=0), qy.clamp(min=0)) + torch.maximum(qx, qy).clamp(max=0) - r
    edge = 1.0 / height + shapes.soft
    alpha = (0.5 - distance / edge).clamp_(0, 1).mul_(shapes.alpha[shape])
    hit = alpha > 0
    index = ((shapes.frame[shape] * height + py) * width + px)[hit]
    a = alpha[hit, None]
    light = 1 - shapes.shade * (u / w)[hit, None]
    flat = canvas.view(-1, 3)
    flat[index] = flat[index] * (1 - a) + shapes.colour[shape][hit] * light * a
