"""Recall and evidence at an hour by frame budget, and splits by what is on the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bench.memory import policies
from bench.memory.policies import Flat
from bench.memory.quality import Weights, score, tokens_of
from bench.memory.streams import Played, Spec
from bench.memory.world import BUDGET, OURS, RETRIEVAL, TEXTS, World, feed
from watchbench.questions import PRODUCT

FRAMES = (8, 16, 32, 40, 48, 64, 128)


LESS = (2 << 20, 1 << 20)
"""Fewer bytes of clusters on the device than elsewhere in this bench (4 MB of the 60 MB of an hour)."""


def splits(world: World, played: Played) -> dict[str, int]:
    """Splits carried out with fewer clusters on the device, by bytes."""
    out: dict[str, int] = {}
    for size in LESS:
        memory = world.memory(played, replace(OURS, resident_bytes=size))
        feed(memory, played.blocks, world)
        out[str(size)] = memory.count.splits
    return out


def budgets(world: World, spec: Spec) -> dict[str, Any]:
    """`frames`: per frame budget and policy one row per question; `evidence_64` is evidence with the whole
    budget's denominator, to compare answers that read less. `splits`: those carried out with less on the
    device."""
    played = world.stream(spec)
    memory = world.memory(played)
    feed(memory, played.blocks, world)
    shot = memory.snapshot()
    flat = Flat.of(played.blocks).until(shot.window[0].first_token)
    visible = shot.window[0].first_frame
    before = shot.prefix.keys.shape[2] + sum(one.block.rows for one in shot.window)
    out: dict[str, Any] = {str(frames): {} for frames in FRAMES}
    for number, name in enumerate(PRODUCT):
        text, weights = TEXTS[name], Weights(before, flat.count)
        whole, _ = world.read(shot, text, flat, policies.everything(flat), observer=weights)
        ranked = [np.argsort(-w, kind="stable") for w in weights.layers]
        evidence = played.truth[:visible, number][flat.frames]
        full = max(1, min(round(BUDGET * flat.count / visible), evidence.sum()))
        for frames in FRAMES:
            budget = round(frames * flat.count / visible)
            best = [np.sort(rank[:budget]) for rank in ranked]
            answer = world.ask(shot, text, retrieval=replace(RETRIEVAL, frames=frames))
            read = {"ours": (answer, tokens_of(answer, memory))}
            choices = {
                "token": policies.token_level(flat, budget),
                "frame": policies.frame_level(flat, frames, budget),
                "uniform": policies.uniform_frames(flat, frames, budget),
            }
            read |= {policy: world.read(shot, text, flat, choose) for policy, choose in choices.items()}
            for policy, (one, rows) in read.items():
                out[str(frames)].setdefault(policy, []).append(
                    {
                        **score(rows, weights, best, evidence),
                        "evidence_64": float(np.mean([evidence[mine].sum() for mine in rows]) / full),
                        "dp": abs(one.p_yes - whole.p_yes),
                        "shown": bool(evidence.any()),
                    }
                )
    return {"frames": out, "splits": splits(world, played)}
