"""HERMES and SimpleStream compared with the default on the pairs of pasts of `history.py`.

- `hermes`: what that scheme keeps of the past, as many tokens in every layer as the others read.
- `last N`: SimpleStream, the last N frames whole, in a prompt of their own and without any memory. Both pasts
  of a pair end alike, so that it answers both alike: chance, at a hundredth of the tokens.
- `newest`, `none`, `everything`: KV of the newest frames, none, all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from bench.memory import policies
from bench.memory.history import NOTHING, SEEN_FOR, fed, histories, part_of, through
from bench.memory.policies import Choice, Flat, FlatReader
from bench.memory.quality import proxy_queries
from bench.memory.streams import FRAMES, Played, Spec, stride_blocks
from bench.memory.world import BUDGET, RETRIEVAL, TEXTS, World
from lookout.models.engines import Question, WindowRequest
from lookout.models.engines.transformers.memory import LayerTrace
from lookout.models.windows import Planner, Policy, WindowSettings
from lookout.past.memory import Predictor
from watchbench.questions import PRODUCT

LAST: Final = (4, 8, 16)


def last_frames(world: World, played: Played, count: int) -> list[float]:
    """p(yes) of every question from the last frames of a stream alone, whole."""
    first = played.frames - count
    window = stride_blocks(played.spec, world.tower, played.tokens[first:], first)
    planner = Planner(world.engine.layout, WindowSettings(count // FRAMES, Policy.PRUNE_ONLY))
    questions = tuple(Question(name, TEXTS[name]) for name in PRODUCT)
    request = WindowRequest(planner.plan(window), window, questions, keep=False)
    return [answer.p_yes for answer in world.engine.run([request])[0].unwrap().answers]


def rivals(world: World, spec: Spec) -> dict[str, Any]:
    """p(yes) of every rival for every history and question of an hour."""
    played = world.stream(spec)
    memory = world.memory(played)
    fed(memory, played.blocks, world)
    shot = memory.snapshot()
    visible = shot.window[0].first_frame
    flat = Flat.of(played.blocks).until(shot.window[0].first_token)
    proxy, budget = proxy_queries(world, shot, flat), round(BUDGET * flat.count / visible)
    alone = {count: last_frames(world, played, count) for count in LAST}
    rows = []
    for number, name in enumerate(PRODUCT):
        shown = played.truth[:, number]
        if shown[visible - SEEN_FOR :].any():  # the window shows it, or was born while it did
            continue
        for allowed, age in histories(shown[:visible]):
            part = part_of(flat, allowed)
            choices: dict[str, Choice] = {
                "none": lambda layer, query: NOTHING,
                "everything": policies.everything(part),
                "newest": policies.newest(part, budget),
                "hermes": policies.hermes(part, proxy, budget),
            }
            p = {told: read(world, shot, TEXTS[name], part, choose) for told, choose in choices.items()}
            readable = np.ones(len(shot.times_us), bool)
            readable[: len(allowed)] = allowed
            p["ours"] = through(world, shot, TEXTS[name], RETRIEVAL, readable)
            p |= {f"last {count}": told[number] for count, told in alone.items()}
            rows.append({"question": name, "age": age, "p": p})
    return {"stream": spec.name, "rows": rows}


def read(world: World, shot: Any, text: str, part: Flat, choose: Choice) -> float:
    """p(yes) of one question from what a rule chooses of a history."""

    def reader(traces: Sequence[LayerTrace]) -> FlatReader:
        return FlatReader(part, choose, traces)

    return float(world.ask(shot, text, reader=reader, predictor=Predictor.NONE).p_yes)
