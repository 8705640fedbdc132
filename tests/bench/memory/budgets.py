"""Recall and evidence at an hour by frame budget, and splits by what is on the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lookout.memory import SplitMode
from tests.bench.memory import policies
from tests.bench.memory.policies import Flat
from tests.bench.memory.quality import Weights, score, tokens_of
from tests.bench.memory.streams import Played, Spec
from tests.bench.memory.world import BUDGET, MOSAIC, OURS, RETRIEVAL, TEXTS, World, feed
from watchbench.questions import PRODUCT

FRAMES = (8, 16, 32, 40, 48, 64, 128)


RESIDENT = (4 << 20, 2 << 20, 1 << 20)
"""Bytes of clusters on the device; an hour has 60 MB."""


def splits(world: World, played: Played) -> dict[str, dict[str, int]]:
    """Splits carried out, eager and deferred by resident bytes, with a question every five minutes."""
    out: dict[str, dict[str, int]] = {}
    for name, settings in {"ours": OURS, "mosaic": MOSAIC}.items():
        ways = {str(size): replace(settings, resident_bytes=size) for size in RESIDENT}
        out[name] = {}
        for way, chosen in {"eager": replace(settings, split=SplitMode.EAGER), **ways}.items():
            memory = world.memory(played, chosen)
            feed(memory, played.blocks, world)
            out[name][way] = memory.count.splits
    return out


def budgets(world: World, spec: Spec) -> dict[str, Any]:
    """`frames`: per frame budget and policy one row per question; `evidence_64` is evidence with the whole
    budget's denominator, to compare answers that read less. `splits`: those carried out, per preset and share
    of the KV that is on the device."""
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
