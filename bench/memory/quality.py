"""What a policy reads of an hour, at an equal budget, and what its answers lose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from bench.memory import policies
from bench.memory.policies import Choice, Flat
from bench.memory.streams import Spec
from bench.memory.world import (
    BUDGET,
    MOSAIC,
    MOSAIC_RETRIEVAL,
    OURS,
    RETRIEVAL,
    SEVEN_B,
    TEXTS,
    World,
    feed,
)
from lookout.models.engines.transformers.memory import MemoryAnswer, clock
from lookout.past.memory import CameraMemory, Predictor, Snapshot, SplitMode
from lookout.past.memory.statistics import unit_variance
from watchbench.questions import PRODUCT

VISUAL = replace(
    OURS, visual_frames=6, visual_cap=12, smallest_visual=2, cluster_tokens=10**6, smallest=10**9
)
SEMANTIC = replace(MOSAIC, visual_frames=10**9, visual_cap=10**9, visual_limit=1e9)
MEMORIES = {
    "ours": OURS,
    "eager": replace(OURS, split=SplitMode.EAGER),
    "deferred": replace(OURS, split=SplitMode.DEFERRED),
    "mosaic": MOSAIC,
    "mosaic, eager": replace(MOSAIC, split=SplitMode.EAGER),
    "visual": VISUAL,
    "semantic": SEMANTIC,
}


class Weights:
    """Attention of the question's rows on every visible token, mean over heads and rows, per layer."""

    def __init__(self, before: int, tokens: int) -> None:
        self.before, self.tokens = before, tokens
        self.layers: list[np.ndarray] = []

    def __call__(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor, scaling: float
    ) -> None:
        groups = query.shape[0] // keys.shape[0]
        score = query @ keys.repeat_interleave(groups, 0).transpose(1, 2) * scaling + bias
        self.layers.append(score.softmax(-1).mean((0, 1))[self.before : self.before + self.tokens].numpy())


def tokens_of(answer: MemoryAnswer, memory: CameraMemory) -> list[np.ndarray]:
    """Token numbers that each layer of an answer retrieved."""
    out = []
    for layer, trace in enumerate(answer.traces):
        held = {cluster.id: cluster.slab.tokens for cluster in memory.clusters(layer)}
        parts = [held[number] for number in trace.ids]
        out.append(np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64))
    return out


def score(
    read: Sequence[np.ndarray], weights: Weights, best: Sequence[np.ndarray], evidence: np.ndarray
) -> dict[str, Any]:
    """Recall, mass and evidence of one answer, means over layers, and the evidence of every layer."""
    rows = []
    for mine, weight, top in zip(read, weights.layers, best, strict=True):
        hit = len(np.intersect1d(mine, top)) / len(top)
        mass = weight[mine].sum() / weight[top].sum()
        found = evidence[mine].sum() / max(1, min(len(top), evidence.sum()))
        rows.append((hit, mass, found))
    means = dict(zip(("recall", "mass", "evidence"), np.mean(rows, 0).tolist(), strict=True))
    return {**means, "layers": [float(row[2]) for row in rows]}


def proxy_queries(world: World, shot: Snapshot, flat: Flat) -> list[torch.Tensor]:
    """The mean query of the prompt's own tail in every layer: what a query-agnostic memory scores with."""
    seen: list[torch.Tensor] = []

    def choose(layer: int, query: torch.Tensor) -> np.ndarray:
        seen.append(query)
        return np.zeros(0, np.int64)

    world.read(shot, "", flat, choose)
    return seen


def quality(world: World, spec: Spec) -> dict[str, Any]:
    """All policies on one hour."""
    played = world.stream(spec)
    made: dict[str, CameraMemory] = {}
    counts: dict[str, Any] = {}
    for name, settings in MEMORIES.items():
        begun = clock()
        made[name] = world.memory(played, settings)
        feed(made[name], played.blocks, world)
        size, seconds = made[name].size(SEVEN_B), clock() - begun
        counts[name] = {
            **asdict(made[name].count),
            "clusters": size.clusters,
            "visual": len(made[name].layers[0].counts),
            "index_share": size.share,
            "upkeep_share": size.upkeep_bytes / size.kv_bytes,
            "seconds": seconds,
            "variance": spread(made[name]),
        }
    ours = made["ours"]
    shot = ours.snapshot()
    visible = shot.window[0].first_frame
    flat = Flat.of(played.blocks).until(shot.window[0].first_token)
    budget = round(BUDGET * flat.count / visible)
    proxy = proxy_queries(world, shot, flat)
    frame_level = policies.frame_level(flat, BUDGET, budget)
    squeezed = policies.compressed(flat, proxy, budget)
    before = shot.prefix.keys.shape[2] + sum(one.block.rows for one in shot.window)
    rows = []
    for number, name in enumerate(PRODUCT):
        text = TEXTS[name]
        weights = Weights(before, flat.count)
        whole, _ = world.read(shot, text, flat, policies.everything(flat), observer=weights)
        best = [np.sort(np.argsort(-w, kind="stable")[:budget]) for w in weights.layers]
        shown = played.truth[:visible, number]
        evidence = shown[flat.frames]
        choices: dict[str, Choice] = {
            "newest": policies.newest(flat, budget),
            "uniform": policies.uniform_frames(flat, BUDGET, budget),
            "random frames": policies.random_frames(flat, BUDGET, budget, spec.seed),
            "random clusters": policies.random_clusters(ours, budget, spec.seed),
            "token": policies.token_level(flat, budget),
            "frame": frame_level,
            "exact": policies.given(best),
            "agnostic": policies.agnostic(flat, proxy, budget),
            "compressed": squeezed,
        }
        found: dict[str, dict[str, Any]] = {}
        for policy, choose in choices.items():
            answer, read = world.read(shot, text, flat, choose)
            found[policy] = {**score(read, weights, best, evidence), "p": answer.p_yes}
        for policy, memory in made.items():
            reading = MOSAIC_RETRIEVAL if policy.startswith("mosaic") else RETRIEVAL
            answer = world.ask(memory.snapshot(), text, retrieval=reading)
            found[policy] = {**score(tokens_of(answer, memory), weights, best, evidence), "p": answer.p_yes}
        nothing = [np.zeros(0, np.int64) for _ in best]
        alone, _ = world.read(shot, text, flat, lambda layer, query: np.zeros(0, np.int64))
        found["none"] = {**score(nothing, weights, best, evidence), "p": alone.p_yes}
        rows.append(
            {
                "question": name,
                "true": bool(played.truth[:, number].any()),
                "shown": int(shown.sum()),
                "p_all": whole.p_yes,
                "policies": found,
            }
        )
    return {
        "stream": spec.name,
        "budget": budget,
        "counts": counts,
        "questions": rows,
        "prefetch": prefetching(world, ours),
    }


def spread(memory: CameraMemory) -> float:
    """Mean variance of unit keys inside clusters, weighted by members: lower is tighter."""
    total, count = 0.0, 0
    for layer in range(memory.shape.layers):
        for part in memory.layers[layer].partitions:
            if part is not None:
                total += float((unit_variance(part.units, part.counts) * part.counts).sum())
                count += int(part.counts.sum())
    return total / max(1, count)


def prefetching(world: World, memory: CameraMemory) -> dict[str, float]:
    """Hits of fetching ahead over all questions, layers after the first."""
    needed = foreseen = wasted = moved = 0
    chance: list[float] = []
    for name in PRODUCT:
        answer = world.ask(memory.snapshot(), TEXTS[name], predictor=Predictor.RESIDUAL)
        for trace in answer.traces[1:]:
            one = trace.transfer
            needed, foreseen = needed + one.needed, foreseen + one.foreseen
            wasted, moved = wasted + one.wasted_bytes, moved + one.early_bytes + one.late_bytes
            chance.append(one.chance)
    return {
        "hits": foreseen / max(1, needed),
        "chance": float(np.mean(chance)),
        "wasted": wasted / max(1, moved),
    }
