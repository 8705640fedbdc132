"""Attention of the engine on the device, against float64 on the host, for the shapes that windows have.

A mask, all rows of the keys', or the last rows of them; keys and values that are views of longer buffers, as
a stream's KV is. Where windows differ from the host's (step `oracles`), this says which kernel does.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from lookout.models.engines.transformers.attention import additive, sdpa
from tests.gpu.scale import Scale

SHAPES: Final = (
    (1, 1), (16, 23), (17, 67), (29, 35), (29, 104), (30, 37), (30, 66), (30, 96), (32, 102), (45, 52),
    (58, 64), (64, 128), (69, 215), (87, 93), (96, 103), (128, 129), (206, 212), (300, 1000),
)  # fmt: skip
"""(rows, keys)."""
HEADS: Final = ((4, 2), (9, 3), (28, 4), (16, 16))
CLOSE: Final = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
ROUND = 64  # a stream's buffers have rows in steps of so many


def run(scale: Scale) -> dict[str, Any]:
    """The largest difference by dtype and kind, and the shapes that are off."""
    draw = torch.Generator().manual_seed(1)
    worst, wrong = dict[str, float](), dict[str, float]()
    for dtype, close in CLOSE.items():
        for heads, kv_heads in HEADS:
            for rows, count in SHAPES:
                for kind in ("mask", "causal", "last rows"):
                    apart = difference(scale.device, dtype, (heads, kv_heads, rows, count), kind, draw)
                    name = f"{dtype}, {kind}".removeprefix("torch.")
                    worst[name] = max(worst.get(name, 0.0), apart)
                    if not apart <= close:
                        wrong[f"{name}, {heads}/{kv_heads} heads, {rows} of {count}"] = round(apart, 5)
    return {"worst": {name: round(value, 7) for name, value in worst.items()}, "wrong": wrong}


def difference(
    device: torch.device,
    dtype: torch.dtype,
    shape: tuple[int, int, int, int],
    kind: str,
    draw: torch.Generator,
) -> float:
    """The largest difference of one call of (heads, KV heads, rows, keys)."""
    heads, kv_heads, rows, count = shape
    rows = count if kind == "causal" else rows
    size, capacity = 32 if heads < 16 else 128, -(-count // ROUND) * ROUND
    query = torch.randn(heads, rows, size, generator=draw).to(dtype)
    key, value = (
        torch.randn(kv_heads, capacity, size, generator=draw).to(dtype)[:, :count] for _ in range(2)
    )
    seen = torch.arange(count)[None] <= torch.arange(count - rows, count)[:, None]
    if kind == "mask":
        seen = torch.rand(rows, count, generator=draw) < 0.7
        seen[:, 0] = True
    host = sdpa(*(part.double() for part in (query, key, value)), additive(seen, torch.float64), size**-0.5)
    mask = additive(seen.to(device), dtype) if kind == "mask" else None
    full_key, full_value = (
        torch.zeros(kv_heads, capacity, size, dtype=dtype, device=device) for _ in range(2)
    )
    full_key[:, :count], full_value[:, :count] = key.to(device), value.to(device)
    ours = sdpa(query.to(device), full_key[:, :count], full_value[:, :count], mask, size**-0.5)
    return float((ours.cpu().double() - host).abs().max())
