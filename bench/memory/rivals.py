"""HERMES and SimpleStream compared with the default on the pairs of pasts of `history.py`.

- `hermes`: what that scheme keeps of the past, as many tokens in every layer as the others read.
- `last N`: SimpleStream, the last N frames whole, in a prompt of their own and without any memory. Both pasts
  of a pair end alike, so that it answers both alike: chance, at a hundredth of the tokens.
- `newest`, `none`, `everything`: KV of the newest frames, none, all.
"""

from __future__ import annotations

from typing import Any, Final

from bench.memory import policies
from bench.memory.history import NOTHING, chosen_by, fed, pasts, through
from bench.memory.policies import Choice, Flat
from bench.memory.quality import proxy_queries
from bench.memory.streams import FRAMES, Played, Spec, stride_blocks
from bench.memory.world import BUDGET, TEXTS, World
from lookout.models.engines import Question, WindowRequest
from lookout.models.windows import Planner, Policy, WindowSettings
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
    flat = Flat.of(played.blocks).until(shot.window[0].first_token)
    proxy, budget = proxy_queries(world, shot, flat), round(BUDGET * flat.count / shot.window[0].first_frame)
    alone = {count: last_frames(world, played, count) for count in LAST}
    rows = []
    for past in pasts(played, shot, flat):
        choices: dict[str, Choice] = {
            "none": lambda layer, query: NOTHING,
            "everything": policies.everything(past.part),
            "newest": policies.newest(past.part, budget),
            "hermes": policies.hermes(past.part, proxy, budget),
        }
        p = {name: chosen_by(world, shot, past, choose) for name, choose in choices.items()}
        p["ours"] = through(world, shot, past)
        rows.append(past.row(p | {f"last {count}": told[past.number] for count, told in alone.items()}))
    return {"stream": spec.name, "rows": rows}
