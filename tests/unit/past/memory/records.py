"""Blocks of random born KV that drift and change scenes, for tests of the memory room alone."""

from __future__ import annotations

import numpy as np
import torch

from lookout.past.memory import BornBlock, CameraMemory, Keep, KVShape, MemorySettings, Prefix

SHAPE = KVShape(layers=2, kv_heads=2, head_dim=4)
SMALL = MemorySettings(
    window=2,
    construct=6,
    cluster_tokens=8,
    visual_frames=4,
    visual_cap=12,
    smallest=4,
    smallest_visual=2,
    waiting=8,
    rest=9,
    resident_bytes=20 * 8 * SHAPE.token_bytes,
)


def block(
    index: int, *, seed: int = 0, frames: int = 3, per_frame: int = 5, scene: int = 0, shape: KVShape = SHAPE
) -> BornBlock:
    """A block whose tokens gather around a few directions of its scene."""
    draw = torch.Generator().manual_seed(seed * 100_003 + index)
    world = torch.Generator().manual_seed(777 + scene)
    rows = frames * per_frame
    centres = torch.randn(shape.layers, 4, shape.kv_heads, shape.head_dim, generator=world)
    own = torch.randint(0, 4, (rows,), generator=draw)
    size = (shape.layers, shape.kv_heads, rows, shape.head_dim)
    keys = centres[:, own].transpose(1, 2) + 0.3 * torch.randn(size, generator=draw)
    values = torch.randn(size, generator=draw)
    look = torch.randn(6, generator=world) + 0.05 * torch.randn(frames, 6, generator=draw)
    step = np.full(shape.axes, per_frame, dtype=np.int64)
    return BornBlock(
        stream="gate/0",
        index=index,
        times_us=(index * frames + np.arange(frames)) * 500_000,
        embeddings=look,
        frame=np.repeat(np.arange(frames), per_frame),
        places=np.tile(np.arange(per_frame), frames)[None].repeat(shape.axes, 0),
        step=step,
        extent=step,
        keys=keys.to(shape.dtype),
        values=values.to(shape.dtype),
    )


def prefix(shape: KVShape = SHAPE, rows: int = 3) -> Prefix:
    draw = torch.Generator().manual_seed(5)
    size = (shape.layers, shape.kv_heads, rows, shape.head_dim)
    positions = np.arange(rows)[None].repeat(shape.axes, 0)
    keys, values = (torch.randn(size, generator=draw).to(shape.dtype) for _ in range(2))
    return Prefix(positions, keys, values)


def memory(
    settings: MemorySettings = SMALL, shape: KVShape = SHAPE, keep: Keep | None = None
) -> CameraMemory:
    return CameraMemory(shape, prefix(shape), settings, keep=keep)


def scene_of(index: int, seed: int) -> int:
    """A scene cut now and then."""
    return int(np.random.default_rng([seed, index // 4]).integers(0, 3))


def play(one: CameraMemory, blocks: int, *, seed: int = 0, first: int = 0, asks: int = 3) -> None:
    """Feed blocks and, every `asks` of them, report some clusters as fetched."""
    for index in range(first, first + blocks):
        one.add(block(index, seed=seed, scene=scene_of(index, seed)))
        if asks and index % asks == 2:
            draw = np.random.default_rng([seed, index])
            chosen = {
                layer: [c.id for c in one.clusters(layer) if draw.random() < 0.4]
                for layer in range(one.shape.layers)
            }
            one.settle(chosen)


def state(one: CameraMemory) -> list[object]:
    """Everything a memory is, to the bit."""
    out: list[object] = [one.version, one.residency.order(), one.table.tokens, one.held_from]
    out.append(sorted(one.wide.items()))
    out.append([(b.first_frame, b.block.digest()) for b in one.open])
    out.append(None if one.visual is None else (one.visual.sums.tolist(), one.visual.counts.tolist()))
    for layer in range(one.shape.layers):
        out += [
            (
                cluster.id,
                cluster.slab.tokens.tolist(),
                cluster.slab.data.double().flatten().tolist(),
                cluster.unit.tolist(),
                cluster.key.tolist(),
                cluster.value.tolist(),
                (cluster.frame, cluster.first, cluster.last, cluster.place.tolist()),
                (cluster.marked, cluster.owner),
            )
            for cluster in one.clusters(layer)
        ]
    return out
