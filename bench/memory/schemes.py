"""First token of every scheme of reading an hour, and what deferring splits saves, on one stream.

`first token`: CPU seconds of one answer, at equal budgets; what a scheme prepares before the question (the
means of ReKV's frames, what LiveVLM's, StreamMem's and HERMES' schemes keep) is not in it. `splits` and
`seconds`: of feeding the hour with a question every five minutes, by memories that split late, late beyond
the device, and at once; these take turns, because the machine may be busy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from bench.memory import policies
from bench.memory.policies import Choice, Flat
from bench.memory.quality import MEMORIES, proxy_queries
from bench.memory.streams import Spec
from bench.memory.world import BUDGET, MOSAIC_RETRIEVAL, RETRIEVAL, TEXTS, World, feed
from lookout.models.engines.transformers.memory import MemoryAnswer, clock
from watchbench.questions import PRODUCT

SPLITTING: Final = ("ours", "eager", "deferred", "mosaic", "mosaic, eager")
PAIRS: Final = (("ours", "eager"), ("deferred", "eager"), ("mosaic", "mosaic, eager"))
PART: Final = 38
"""Blocks between two questions: about five minutes."""
CACHE: Final = 96 << 20
"""Bytes that are written before every answer: more than a CPU's cache."""


def timed(runs: dict[str, Callable[[], MemoryAnswer]], repeats: int = 9) -> dict[str, list[float]]:
    """CPU seconds of each way's first tokens.

    Answers take turns, so that all meet the same machine, in an order drawn for each turn: in a fixed one,
    two equal ways differ by a tenth. Each finds a cache full of other things: a question comes while windows
    are computed, and what the answer before has read must not help it.
    """
    turns: dict[str, list[float]] = {name: [] for name in runs}
    other, draw = torch.ones(CACHE // 4), random.Random(0)
    for turn in range(repeats + 1):
        for name in draw.sample(list(runs), len(runs)):
            other += 1
            answer = runs[name]()
            if turn:
                turns[name].append(answer.cost.first_token_s)
    return turns


def schemes(world: World, spec: Spec) -> dict[str, Any]:
    """Splits and CPU seconds of feeding an hour by way of splitting, and first tokens at its end."""
    played = world.stream(spec)
    made = {name: world.memory(played, MEMORIES[name]) for name in SPLITTING}
    spent = dict.fromkeys(SPLITTING, 0.0)
    for number, begin in enumerate(range(0, len(played.blocks), PART)):
        question = TEXTS[PRODUCT[number % len(PRODUCT)]]
        for name, memory in made.items():
            begun = clock()
            feed(memory, played.blocks[begin : begin + PART])
            if memory.visual is not None:
                answer = world.ask(memory.snapshot(), question, resident=memory.residency.__contains__)
                memory.settle(answer.fetched)
            spent[name] += clock() - begun
    shot, paper = made["ours"].snapshot(), made["mosaic"].snapshot()
    flat = Flat.of(played.blocks).until(shot.window[0].first_token)
    budget = round(BUDGET * flat.count / shot.window[0].first_frame)
    proxy, text = proxy_queries(world, shot, flat), TEXTS["vehicle"]
    choices: dict[str, Choice] = {
        "none": lambda layer, query: np.zeros(0, np.int64),
        "token": policies.token_level(flat, budget),
        "frame": policies.frame_level(flat, BUDGET, budget),
        "agnostic": policies.agnostic(flat, proxy, budget),
        "compressed": policies.compressed(flat, proxy, budget),
        "hermes": policies.hermes(flat, proxy, budget),
        "everything": policies.everything(flat),
    }

    def flat_read(choose: Choice) -> Callable[[], MemoryAnswer]:
        return lambda: world.read(shot, text, flat, choose)[0]

    runs = {name: flat_read(choose) for name, choose in choices.items()}
    bare = replace(RETRIEVAL, representatives=False)
    runs |= {
        "ours": lambda: world.ask(shot, text),
        "ours again": lambda: world.ask(shot, text),  # the control: how far two equal ways lie apart
        "ours, no representatives": lambda: world.ask(shot, text, retrieval=bare),
        "mosaic": lambda: world.ask(paper, text, retrieval=MOSAIC_RETRIEVAL),
    }
    return {
        "stream": spec.name,
        "splitting": {
            name: {"splits": memory.count.splits, "seconds": spent[name]} for name, memory in made.items()
        },
        "first token": timed(runs),
    }


def tables(units: Sequence[dict[str, Any]], rounds: int = 2000) -> dict[str, dict[str, dict[str, Any]]]:
    """`first token`: seconds over those of the default, turn by turn; `splits deferred`: what late splits
    save of those at once, by stream. Intervals are bootstrap 95 %."""
    draw = np.random.default_rng(0)

    def cells(values: Sequence[float]) -> tuple[float, list[float]]:
        told = np.array(values)
        means = told[draw.integers(0, len(told), (rounds, len(told)))].mean(1)
        return round(float(told.mean()), 3), [round(float(x), 3) for x in np.quantile(means, (0.025, 0.975))]

    first, deferred = {}, {}
    for name in units[0]["first token"]:
        pairs = [
            (own, ours)
            for unit in units
            for own, ours in zip(unit["first token"][name], unit["first token"]["ours"], strict=True)
        ]
        over, edges = cells([own / ours for own, ours in pairs])
        median = float(np.median([own for own, _ in pairs]))
        first[name] = {
            "ms": round(1000 * median, 1),
            "over ours": over,
            "over ours 95 %": edges,
            "turns": len(pairs),
        }
    for late, soon in PAIRS:
        told = [unit["splitting"] for unit in units]
        less, edges = cells([1 - one[late]["seconds"] / one[soon]["seconds"] for one in told])
        counts = {name: sum(one[name]["splits"] for one in told) for name in (late, soon)}
        deferred[f"{late} against {soon}"] = {
            "splits": counts[late],
            "at once": counts[soon],
            "splits saved": round(1 - counts[late] / max(1, counts[soon]), 3),
            "time saved": less,
            "time saved 95 %": edges,
            "streams": len(told),
        }
    return {"first token": first, "splits deferred": deferred}
