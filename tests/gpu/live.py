"""Windows of 80 frames: latency by stage, and live streams on one device.

Two workloads of the same windows, five blocks of 16 frames. CodecSight's: 40 s at 2 FPS, sliding by 8 s. That
of VSS 3.1's page on real-time alerts (51 streams on an H100): chunks of 10 s with 80 frames of 98 tokens, one
question each; ours is asked every 2 s of the chunk as well, at 8 FPS.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench import windows
from lookout.models.engines import WindowRequest
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.vision import FrameInput
from lookout.models.windows import DEFAULT_PRESET, PRESETS, Planner, StrideBlock, WindowSettings
from tests.gpu.scale import Scale, Stopwatch, peak_bytes

STRIDE_S, CHUNK_S, CHUNK_STRIDE_S = windows.STRIDE_S, 10.0, 2.0


def run(scale: Scale) -> dict[str, Any]:
    """Milliseconds a stream and live streams, dense and by level of motion; milliseconds of the stages."""
    engine = scale.engine()
    shares = windows.levels("default")
    dense = _whole(engine, scale, [1.0], 1)
    out: dict[str, Any] = {
        "dense_window_ms": round(1e3 * dense, 2),
        "dense_streams_of_chunks": round(CHUNK_S / dense, 1),
        "encode_ms_a_block": _encoding(scale, shares),
    }
    for level, keep in shares.items():
        whole = _whole(engine, scale, keep, scale.streams[-1])
        slides = {str(count): _slide(engine, scale, keep, count) for count in scale.streams}
        best = min(float(slide["stream_ms"]) for slide in slides.values()) / 1e3
        out[level] = {
            "pruned_window_ms": round(1e3 * whole, 2),
            "streams_of_chunks": round(CHUNK_S / whole, 1),
            "by_batch": slides,
            "live_streams_40s": round(STRIDE_S / best, 1),
            "live_streams_vss_every_2s": round(CHUNK_STRIDE_S / best, 1),
        }
    engine.close()
    return out | {"peak_bytes": peak_bytes(scale.device)}


def _blocks(
    engine: TransformersEngine, scale: Scale, keep: list[float], streams: Sequence[str]
) -> dict[str, list[StrideBlock]]:
    """The blocks of each stream; all have the same tokens on the device, which takes long to fill."""
    made = []
    for index in range(windows.BLOCKS + scale.windows):
        block = windows.block(index, keep, engine.model.hidden, scale.grid)
        frames = [
            replace(frame, tokens=frame.tokens.to(engine.model.device, engine.model.dtype))
            for frame in block.frames
        ]
        made.append(replace(block, frames=tuple(frames)))
    return {stream: [replace(block, stream=stream) for block in made] for stream in streams}


def _settings() -> WindowSettings:
    return replace(PRESETS[DEFAULT_PRESET], blocks=windows.BLOCKS, key_every=10_000, samples=windows.FRAMES)


def _whole(engine: TransformersEngine, scale: Scale, keep: list[float], streams: int) -> float:
    """Seconds a stream of windows that are computed whole, in a batch."""
    planner = Planner(engine.layout, _settings())
    blocks = _blocks(engine, scale, keep, [f"whole-{n}" for n in range(streams)])
    requests = [
        WindowRequest(
            planner.plan(part[: windows.BLOCKS]), part[: windows.BLOCKS], [windows.QUESTION], keep=False
        )
        for part in blocks.values()
    ]
    seconds = []
    for _ in range(1 + scale.windows):  # the first warms up
        watch = Stopwatch(scale.device)
        for answer in engine.run(requests):
            answer.unwrap()
        seconds.append(watch.lap() / streams)
    return statistics.median(seconds[1:])


def _slide(engine: TransformersEngine, scale: Scale, keep: list[float], streams: int) -> dict[str, float]:
    """Milliseconds of steady slides in a batch of streams, by stage."""
    planner = Planner(engine.layout, _settings())
    names = [f"slide-{number}" for number in range(streams)]
    blocks = _blocks(engine, scale, keep, names)
    plans: dict[str, Any] = dict.fromkeys(names)
    spent: dict[str, list[float]] = {"plan": [], "window": [], "question": []}
    for last in range(windows.BLOCKS, windows.BLOCKS + scale.windows + 1):
        watch = Stopwatch(scale.device)
        spans = {name: blocks[name][last - windows.BLOCKS : last] for name in names}
        plans = {name: planner.plan(spans[name], plans[name]) for name in names}
        lap = {"plan": watch.lap()}
        for answer in engine.run([WindowRequest(plans[name], spans[name]) for name in names]):
            answer.unwrap()
        lap["window"] = watch.lap()
        plans = {name: planner.hold(plan) for name, plan in plans.items()}
        for answer in engine.run([WindowRequest(plans[name], (), [windows.QUESTION]) for name in names]):
            answer.unwrap()
        lap["question"] = watch.lap()
        if last > windows.BLOCKS:  # behind the key window
            for stage, seconds in lap.items():
                spent[stage].append(seconds)
    for name in names:
        engine.close_stream(name)
    stages = {f"{stage}_ms": round(1e3 * statistics.median(laps), 3) for stage, laps in spent.items()}
    total = sum(statistics.median(laps) for laps in spent.values())
    return stages | {"stream_ms": round(1e3 * total / streams, 3)}


def _encoding(scale: Scale, shares: dict[str, list[float]]) -> dict[str, float]:
    """Milliseconds of the tower for the 16 frames of a block: dense, and by level of motion."""
    tower, draw = scale.tower(), np.random.default_rng(0)
    grid = tower.grid
    shape = (windows.FRAMES, grid.temporal, grid.height, grid.width, 3)
    pixels = draw.integers(0, 256, shape, dtype=np.uint8)
    out = {}
    for level, keep in {"dense": [1.0], **shares}.items():
        inputs = []
        for number, frame in enumerate(pixels):
            share = 1.0 if number == 0 else keep[number % len(keep)]
            inputs.append(FrameInput(frame, draw.random((grid.group_rows, grid.group_cols)) <= share))
        tower.encode(inputs)
        watch = Stopwatch(scale.device)
        for _ in range(scale.windows):
            tower.encode(inputs)
        out[level] = round(1e3 * watch.lap() / scale.windows, 2)
    return out
