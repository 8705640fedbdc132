"""Time to the first token, by length of history."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from bench.memory import policies
from bench.memory.budgets import FRAMES as FRAME_BUDGETS
from bench.memory.policies import Choice, Flat
from bench.memory.quality import recomputed
from bench.memory.streams import FRAMES, Spec, joined
from bench.memory.world import (
    BUDGET,
    MOSAIC,
    MOSAIC_RETRIEVAL,
    RETRIEVAL,
    SEVEN_B,
    TEXTS,
    World,
    feed,
)
from lookout.models.engines.transformers.memory import MemoryAnswer, clock
from lookout.past.memory import LINKS, LayerWork, Predictor, Snapshot, overlapped_s, serial_s

CACHE = 96 << 20
"""Bytes that are written before every answer: more than a CPU's cache."""


def timed(runs: dict[str, Callable[[], MemoryAnswer]], repeats: int = 9) -> dict[str, Any]:
    """Median CPU time of each way's answers and of their stages; links apart. Answers take turns, so that all
    meet the same machine, and every one finds a cache full of other things: a question comes while windows
    are computed, and what the answer before has read must not help or hinder it."""
    told: dict[str, list[MemoryAnswer]] = {name: [] for name in runs}
    other = torch.ones(CACHE // 4)
    for turn in range(repeats + 1):
        for name, run in runs.items():
            other += 1
            answer = run()
            if turn:
                told[name].append(answer)
    return {
        name: {**stages(answers), "turns": [answer.cost.first_token_s for answer in answers]}
        for name, answers in told.items()
    }


def stages(told: list[MemoryAnswer]) -> dict[str, Any]:
    """The median answer of several, taken apart."""
    told = sorted(told, key=lambda answer: answer.cost.first_token_s)
    middle = told[len(told) // 2]
    works = [trace.work for trace in middle.traces]
    fixed = middle.cost.first_token_s - sum(work.compute_s for work in works)
    return {
        "first_token_s": middle.cost.first_token_s,
        "fastest_s": told[0].cost.first_token_s,
        "retrieve_s": middle.cost.retrieve_s,
        "move_s": middle.cost.move_s,
        "attend_s": middle.cost.attend_s,
        "bytes": middle.cost.bytes_moved,
        "copies": middle.cost.copies,
        "tokens": middle.cost.memory_tokens,
        "representatives": middle.cost.representatives,
        "links": {link.name: links(works, link, fixed) for link in LINKS},
    }


def links(works: Sequence[LayerWork], link: Any, fixed: float) -> dict[str, float]:
    """Time with a link: each cluster one copy, without and with prefetching; and everything of a layer
    gathered on the host first, one copy a layer."""
    gathered = [
        replace(
            work,
            early_bytes=0,
            early_copies=0,
            late_bytes=work.early_bytes + work.late_bytes,
            late_copies=min(1, work.early_copies + work.late_copies),
        )
        for work in works
    ]
    return {
        "serial": fixed + serial_s(works, link),
        "overlapped": fixed + overlapped_s(works, link),
        "gathered": fixed + serial_s(gathered, link),
    }


POINTS = {"10m": 300, "30m": 900, "1h": 1800, "2h": 3600, "5h": 9000, "10h": 18000}
"""Lengths of history, in frames."""


def lengths(world: World, hours: Sequence[Spec], name: str) -> dict[str, Any]:
    """Time to the first token from ten minutes to ten hours of one camera. Each length is kept when it is
    done: a run that was stopped feeds its memories again and measures the rest."""
    kept = world.out / f"{name.replace(' ', '-')}.points"
    out: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {}
    played = joined([world.stream(spec) for spec in hours], name)
    memory, paper = world.memory(played), world.memory(played, MOSAIC)
    whole = Flat.of(played.blocks)
    done, build = 0, 0.0
    for point, frames in tqdm(POINTS.items(), desc=name):
        fresh = played.blocks[done : frames // FRAMES]
        begun = clock()
        feed(memory, fresh, world, every=600)
        build += clock() - begun
        feed(paper, fresh, world, every=600)
        done = frames // FRAMES
        if point in out:
            continue
        shot = memory.snapshot()
        visible = shot.window[0].first_frame
        rows = times(world, shot, paper.snapshot(), whole.until(shot.window[0].first_token))
        size = memory.size()
        rows |= {"kv_bytes": size.kv_bytes, "index_bytes": size.index_bytes, "clusters": size.clusters}
        rows |= {"build_s": build, "index_share": memory.size(SEVEN_B).share}
        rows["upkeep_share"] = memory.size(SEVEN_B).upkeep_bytes / memory.size(SEVEN_B).kv_bytes
        rows["visual"] = len(memory.layers[0].counts)
        if point == "1h":
            rows["by_budget"] = by_budget(world, shot, whole.until(shot.window[0].first_token))
        rows["recompute_s"] = recomputed(world, played, visible, TEXTS["vehicle"])[1]
        out[point] = rows
        kept.write_text(json.dumps(out))
    kept.unlink()
    return out


def times(world: World, shot: Snapshot, paper: Snapshot, flat: Flat) -> dict[str, Any]:
    """Time to the first token of every way to read one history."""
    text = TEXTS["vehicle"]
    budget = round(BUDGET * flat.count / shot.window[0].first_frame)

    def flat_read(choose: Choice) -> Callable[[], MemoryAnswer]:
        return lambda: world.read(shot, text, flat, choose)[0]

    def read(**more: Any) -> Callable[[], MemoryAnswer]:
        return lambda: world.ask(shot, text, **more)

    return timed(
        {
            "none": flat_read(lambda layer, query: np.zeros(0, np.int64)),
            "token": flat_read(policies.token_level(flat, budget)),
            "frame": flat_read(policies.frame_level(flat, BUDGET, budget)),
            "ours": read(),
            "ours, prefetched": read(predictor=Predictor.RESIDUAL),
            "ours, no representatives": read(retrieval=replace(RETRIEVAL, representatives=0)),
            "ours, 256 representatives": read(retrieval=replace(RETRIEVAL, representatives=256)),
            "ours, all representatives": read(retrieval=replace(RETRIEVAL, representatives=None)),
            "mosaic": lambda: world.ask(paper, text, retrieval=MOSAIC_RETRIEVAL),
        }
    )


def by_budget(world: World, shot: Snapshot, flat: Flat) -> dict[str, Any]:
    """Seconds to the first token by frame budget."""
    text, visible = TEXTS["vehicle"], shot.window[0].first_frame
    runs: dict[str, Callable[[], MemoryAnswer]] = {}
    for frames in FRAME_BUDGETS:
        budget = round(frames * flat.count / visible)
        settings, choose = replace(RETRIEVAL, frames=frames), policies.token_level(flat, budget)
        runs[f"ours {frames}"] = lambda settings=settings: world.ask(shot, text, retrieval=settings)  # type: ignore[misc]
        runs[f"token {frames}"] = lambda choose=choose: world.read(shot, text, flat, choose)[0]  # type: ignore[misc]
    return {name: row["first_token_s"] for name, row in timed(runs).items()}
