"""A question about an hour of the past: time to the first token, and how clusters move to the device.

The model has some layers of the shape, since clusters are made on the host; times by layer are what a deeper
model multiplies. Keys gather around a few directions of scenes that change.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, Final

import torch

from lookout.models.engines.transformers import TransformersEngine
from lookout.models.engines.transformers.memory import ask
from lookout.models.engines.transformers.memory.moving import mover
from lookout.past.memory import PRESETS, CameraMemory, Cluster, Predictor
from tests.gpu.scale import Scale, Stopwatch
from tests.unit.past.memory.records import block, prefix

FRAMES, SCENE_BLOCKS, TIMES = 8, 12, 5
QUESTION: Final = "Has an object been left behind?"


def run(scale: Scale) -> dict[str, Any]:
    """Milliseconds to the first token without and with prefetching; GB a second of moves by both ways."""
    engine = scale.engine(scale.memory_layers)
    memory = CameraMemory(engine.kv_shape, prefix(engine.kv_shape), PRESETS["default"].memory)
    watch = Stopwatch(scale.device)
    tokens = scale.grid[0] * scale.grid[1]
    for index in range(scale.history // FRAMES):
        scene = index // SCENE_BLOCKS
        memory.add(block(index, frames=FRAMES, per_frame=tokens, scene=scene, shape=engine.kv_shape))
    out: dict[str, Any] = {
        "frames": scale.history,
        "tokens": scale.history * tokens,
        "layers": len(engine.model.layers),
        "build_s": round(watch.lap(), 2),
    }
    for name, predictor in (("on_demand", Predictor.NONE), ("prefetched", Predictor.RESIDUAL)):
        out[name] = _asked(engine, memory, scale, predictor)
    return out | {"moves": _moves(memory.clusters(0), scale)}


def _asked(
    engine: TransformersEngine, memory: CameraMemory, scale: Scale, predictor: Predictor
) -> dict[str, float]:
    shot, laps, costs = memory.snapshot(), [], []
    for _ in range(TIMES):
        watch = Stopwatch(scale.device)
        costs.append(ask(engine, shot, QUESTION, predictor=predictor).cost)
        laps.append(watch.lap())
    layers = len(engine.model.layers)
    return {
        "first_token_ms": round(1e3 * statistics.median(laps), 3),
        "first_token_ms_a_layer": round(1e3 * statistics.median(laps) / layers, 3),
        "retrieve_ms": round(1e3 * statistics.median(cost.retrieve_s for cost in costs), 3),
        "move_ms": round(1e3 * statistics.median(cost.move_s for cost in costs), 3),
        "attend_ms": round(1e3 * statistics.median(cost.attend_s for cost in costs), 3),
        "bytes_moved": costs[-1].bytes_moved,
        "copies": costs[-1].copies,
    }


def _moves(clusters: list[Cluster], scale: Scale) -> dict[str, float]:
    """GB a second of clusters one by one: pageable memory on the stream that computes, and the mover."""

    def pageable(cluster: Cluster) -> torch.Tensor:
        return cluster.slab.data.to(scale.device, copy=True)

    return {
        "clusters": len(clusters),
        "pageable_gb_s": _rate(pageable, clusters, scale),
        "mover_gb_s": _rate(mover(scale.device), clusters, scale),
    }


def _rate(move: Callable[[Cluster], torch.Tensor], clusters: list[Cluster], scale: Scale) -> float:
    move(clusters[0])
    watch = Stopwatch(scale.device)
    size = sum(moved.numel() * moved.element_size() for moved in map(move, clusters))
    return round(size / watch.lap() / 1e9, 3)
