"""Batching while encoding, and gathered attention against merged partial softmaxes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bench.memory.streams import FRAMES, STEP_S, WINDOW, Spec, episodes
from bench.memory.timing import timed
from bench.memory.world import TEXTS, World, feed
from lookout.models.engines import WindowRequest
from lookout.models.engines.transformers.memory import clock
from lookout.models.vision import FrameInput
from lookout.models.windows import EncodedFrame, Planner, StrideBlock, WindowSettings
from lookout.past.memory import BornBlock, CameraMemory
from lookout.past.memory.attention import merged, partial


def executors(world: World, spec: Spec) -> dict[str, Any]:
    """CPU seconds a frame of encoding and of assignment, one by one and in batches, and of attention."""
    pixels = np.concatenate([told for _, (told, _) in zip(range(6), episodes(spec), strict=False)])[:160]
    keep = np.ones((world.tower.grid.group_rows, world.tower.grid.group_cols), bool)
    inputs = [FrameInput(one[None], keep) for one in pixels]
    times: dict[str, float] = {}
    begun = clock()
    tokens = torch.stack([one.tokens for one in world.tower.encode(inputs)])
    times["vision, all at once"] = (clock() - begun) / len(pixels)
    begun = clock()
    for one in inputs:
        world.tower.encode([one])
    times["vision, one by one"] = (clock() - begun) / len(pixels)
    for name, per in (("one by one", 1), (f"{FRAMES} a block", FRAMES), ("16 a block", 16)):
        times[f"windows, {name}"] = _windows(world, tokens, per, keep) / len(pixels)
    played = world.stream(spec)
    for name, cut in (("one by one", True), (f"{FRAMES} a block", False)):
        memory = world.memory(played)
        blocks = played.blocks[:225]
        if cut:
            blocks = [part for block in blocks for part in _cut(block)]
            memory.settings = replace(memory.settings, window=WINDOW * FRAMES)
        begun = clock()
        feed(memory, blocks)
        times[f"assignment, {name}"] = (clock() - begun) / (225 * FRAMES)
    memory = world.memory(played)
    feed(memory, played.blocks)
    shot, text = memory.snapshot(), TEXTS["person"]
    ways = {
        "gathered": lambda: world.ask(shot, text, gathered=True),
        "merged in two": lambda: world.ask(shot, text, gathered=False),
    }
    attention = {
        **{name: row["first_token_s"] for name, row in timed(ways).items()},
        **slabwise(memory),
    }
    return {"encoding_s_per_frame": times, "attention_s": attention}


def _windows(world: World, tokens: torch.Tensor, per: int, keep: np.ndarray) -> float:
    """CPU seconds of the language model over frames that arrive `per` at a time."""
    frames = WINDOW * FRAMES
    planner = Planner(world.engine.layout, WindowSettings(blocks=max(1, frames // per), key_every=10_000))
    stream, plan, blocks = f"batch-{per}/0", None, []
    total = 0.0
    for index in range(len(tokens) // per):
        mine = tuple(
            EncodedFrame(round((index * per + i) * STEP_S * 1e6), i == 0, keep, tokens[index * per + i])
            for i in range(per)
        )
        blocks = [*blocks, StrideBlock(stream, index, mine)][-max(1, frames // per) :]
        begun = clock()
        plan = planner.plan(blocks, plan)
        world.engine.run([WindowRequest(plan, blocks)])[0].unwrap()
        total += clock() - begun
    world.engine.close_stream(stream)
    return total


def _cut(block: BornBlock) -> Iterator[BornBlock]:
    """A block as one block per frame."""
    for frame in range(block.frames):
        rows = np.flatnonzero(block.frame == frame)
        index = torch.from_numpy(rows)
        yield replace(
            block,
            index=block.index * block.frames + frame,
            times_us=block.times_us[frame : frame + 1],
            embeddings=block.embeddings[frame : frame + 1],
            frame=np.zeros(len(rows), np.int64),
            places=block.places[:, rows],
            keys=block.keys[:, :, index],
            values=block.values[:, :, index],
        )


def slabwise(memory: CameraMemory) -> dict[str, float]:
    """One layer's attention over 24 slabs of ours: copied together and attended in one call, or slab by slab
    as partial softmaxes that are merged."""
    clusters = sorted(memory.clusters(2), key=lambda c: -c.count)[:24]
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(6, 12, 32, generator=draw)

    def gather() -> torch.Tensor:
        data = torch.cat([c.slab.data for c in clusters])
        key, value = data[:, 0].transpose(0, 1), data[:, 1].transpose(0, 1)
        return merged([partial(query, key, value, 0.2)])

    def slabs() -> torch.Tensor:
        parts = []
        for c in clusters:
            data = c.slab.data
            parts.append(partial(query, data[:, 0].transpose(0, 1), data[:, 1].transpose(0, 1), 0.2))
        return merged(parts)

    assert torch.allclose(gather(), slabs(), atol=1e-5)
    out = {}
    for name, run in (("24 slabs gathered, one layer", gather), ("24 slabs merged, one layer", slabs)):
        spent = []
        for _ in range(30):
            begun = clock()
            run()
            spent.append(clock() - begun)
        out[name] = statistics.median(spent)
    return out
