"""Questions about the past whose evidence is one to sixty minutes old, half of them answered No.

An hour of a stream is asked once for every episode that shows what a product's question asks for. Its
evidence is what may be read of the episode; all other episodes of the kind are left out, and so are the
blocks that were born while one was in the window, whose KV saw it. The same hour without any of them is
answered No: every question is asked of two histories of one camera that differ in a single episode. The
window at the end shows none of it, so a policy that reads no history answers both alike.

`chosen`: how often the history with the episode gets the higher p(yes), ties counted half (.5: chance).
`right`: answers on the right side of p(yes) = .5, over both. Every policy reads the tokens of as many frames;
`everything` reads all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch

from bench.memory import policies
from bench.memory.policies import Choice, Flat
from bench.memory.quality import SEMANTIC, VISUAL, Weights, proxy_queries
from bench.memory.streams import FRAMES, STEP_S, WINDOW, Played, Spec
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
from lookout.models.engines.transformers.memory import LayerTrace, ask
from lookout.models.engines.transformers.memory.moving import mover
from lookout.models.engines.transformers.memory.reading import ClusterReader
from lookout.past.memory import BornBlock, CameraMemory, Predictor, Prefetcher, RetrievalSettings, Snapshot
from lookout.past.memory.spans import FrameMask
from watchbench.questions import BY_NAME, PRODUCT

SEEN_FOR: Final = WINDOW * FRAMES
"""Frames behind an episode whose blocks were born while it was in the window."""
AGES: Final = {"1 to 10": 10.0, "10 to 30": 30.0, "30 to 60": 60.0}
"""Minutes from the end of an episode to the question."""
MEMORIES: Final = {"ours": OURS, "mosaic": MOSAIC, "visual": VISUAL, "semantic": SEMANTIC}
FRAME_BUDGETS: Final = (16, 32, BUDGET, 128)
WORDINGS: Final = 3  # of every question
SHARES: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # of all tokens
NOTHING: Final = np.zeros(0, np.int64)


def runs(shown: np.ndarray) -> list[tuple[int, int]]:
    """First and last frame of every episode, bool [frames]; a gap shorter than a window is no end."""
    places = np.flatnonzero(shown)
    if not len(places):
        return []
    parts = np.split(places, np.flatnonzero(np.diff(places) > SEEN_FOR) + 1)
    return [(int(part[0]), int(part[-1])) for part in parts]


def histories(shown: np.ndarray) -> list[tuple[np.ndarray, float]]:
    """What may be read, bool [frames], and the age of its evidence in minutes: without any episode (age 0)
    first, then with each alone."""
    episodes = runs(shown)

    def stretch(first: int, last: int) -> slice:
        return slice(first // FRAMES * FRAMES, (last // FRAMES + 1) * FRAMES + SEEN_FOR)

    bare = np.ones(len(shown), bool)
    for episode in episodes:
        bare[stretch(*episode)] = False
    out = [(bare, 0.0)]
    for first, last in episodes:
        own = bare.copy()
        own[stretch(first, last)] = True
        out.append((own, (len(shown) - 1 - last) * STEP_S / 60))
    return out


def part_of(flat: Flat, allowed: np.ndarray) -> Flat:
    """The tokens of some frames, numbered without gaps."""
    rows = np.flatnonzero(allowed[flat.frames])
    index = torch.from_numpy(rows)
    keys, values = ([one[index] for one in side] for side in (flat.keys, flat.values))
    frames = np.unique(flat.frames[rows], return_inverse=True)[1]
    return Flat(keys, values, frames, flat.places[:, rows], flat.heads)


@dataclass(frozen=True)
class Past:
    """One history that a question is asked of.

    Attributes:
        question: Its name.
        number: Its place among the product's questions.
        age: Minutes since the episode; 0: the history has none.
        part: The tokens that may be read.
        readable: bool [frames of the memory], what may be read; the window's frames always.
    """

    question: str
    number: int
    age: float
    part: Flat
    readable: np.ndarray

    @property
    def text(self) -> str:
        """The question as it is asked."""
        return TEXTS[self.question]

    def row(self, p: dict[str, float]) -> dict[str, Any]:
        """What is kept of it: p(yes) by policy."""
        return {"question": self.question, "age": self.age, "p": p}


def pasts(played: Played, shot: Snapshot, flat: Flat) -> Iterator[Past]:
    """Every question's histories. Questions whose answer the window shows, or whose window was born while it
    was to be seen, are left out."""
    visible = shot.window[0].first_frame
    for number, name in enumerate(PRODUCT):
        shown = played.truth[:, number]
        if shown[visible - SEEN_FOR :].any():
            continue
        for allowed, age in histories(shown[:visible]):
            readable = np.ones(len(shot.times_us), bool)
            readable[:visible] = allowed
            yield Past(name, number, age, part_of(flat, allowed), readable)


def chosen_by(world: World, shot: Snapshot, past: Past, choose: Choice) -> float:
    """p(yes) from what a rule chooses of a history."""

    def reader(traces: Sequence[LayerTrace]) -> policies.FlatReader:
        return policies.FlatReader(past.part, choose, traces)

    return float(world.ask(shot, past.text, reader=reader, predictor=Predictor.NONE).p_yes)


def through(
    world: World,
    shot: Snapshot,
    past: Past,
    retrieval: RetrievalSettings = RETRIEVAL,
    reader: Callable[..., ClusterReader] = ClusterReader,
) -> float:
    """p(yes) of a memory that may read a history."""
    device = world.engine.model.device
    with Prefetcher(mover(device), lambda _: True, ahead=False) as prefetcher:

        def make(traces: Sequence[LayerTrace]) -> ClusterReader:
            span = FrameMask.of(past.readable)
            return reader(shot, retrieval, prefetcher, traces, span=span, device=device)

        return ask(world.engine, shot, past.text, retrieval=retrieval, reader=make).p_yes


def flat_choices(part: Flat, proxy: Sequence[torch.Tensor], seed: int, per_frame: float) -> dict[str, Choice]:
    """The rivals on one history, at equal tokens."""
    budget = round(BUDGET * per_frame)
    out: dict[str, Choice] = {
        "none": lambda layer, query: NOTHING,
        "everything": policies.everything(part),
        "newest": policies.newest(part, budget),
        "uniform": policies.uniform_frames(part, BUDGET, budget),
        "random frames": policies.random_frames(part, BUDGET, budget, seed),
        "agnostic": policies.agnostic(part, proxy, budget),
        "compressed": policies.compressed(part, proxy, budget),
    }
    for frames in FRAME_BUDGETS:
        more = "" if frames == BUDGET else f" {frames}"
        out[f"token{more}"] = policies.token_level(part, round(frames * per_frame))
        out[f"frame{more}"] = policies.frame_level(part, frames, round(frames * per_frame))
    return out


def history(world: World, spec: Spec) -> dict[str, Any]:
    """p(yes) of every policy for every history and question of an hour."""
    played = world.stream(spec)
    shots: dict[str, tuple[Snapshot, RetrievalSettings]] = {}
    bytes_by_minutes = {}
    for name, settings in MEMORIES.items():
        memory: CameraMemory = world.memory(played, settings)
        bytes_by_minutes[name] = fed(memory, played.blocks, world)
        shots[name] = (memory.snapshot(), MOSAIC_RETRIEVAL if name == "mosaic" else RETRIEVAL)
    shot = shots["ours"][0]
    visible = shot.window[0].first_frame
    flat = Flat.of(played.blocks).until(shot.window[0].first_token)
    proxy, per_frame = proxy_queries(world, shot, flat), flat.count / visible
    return {
        "stream": spec.name,
        "rows": [
            past.row(_answers(world, shots, past, proxy, per_frame)) for past in pasts(played, shot, flat)
        ],
        "bytes": bytes_by_minutes["ours"],
        "activated": activated(world, shot, flat, played.tokens.mean(1).numpy()),
    }


def fed(memory: CameraMemory, blocks: Sequence[BornBlock], world: World) -> dict[str, dict[str, int]]:
    """Feed a memory; returns by minutes what of it is on the device, in this model's layers at the width of a
    7B: `full` KV, the `keys` that scoring every token needs, one mean key a `frame`, and the `index` of
    clusters."""
    out = {}
    step = round(600 / STEP_S) // FRAMES
    for begin in range(0, len(blocks), step):
        feed(memory, blocks[begin : begin + step], world)
        size = memory.size(SEVEN_B)
        frames = min(len(blocks), begin + step) * FRAMES
        mean = memory.shape.layers * SEVEN_B.width * SEVEN_B.dtype.itemsize
        kv = size.kv_bytes
        minutes = round(frames * STEP_S / 60)
        out[str(minutes)] = {
            "full": kv,
            "keys": kv // 2,
            "frame": frames * mean,
            "index": round(size.share * kv),
        }
    return out


def activated(world: World, shot: Snapshot, flat: Flat, seen: np.ndarray) -> dict[str, Any]:
    """What attention over everything weighs.

    Args:
        world: The model.
        shot: The memory whose prefix and window are read.
        flat: The history.
        seen: Mean embedding of every frame, float [frames, width].

    Returns:
        `coverage`: by share of the tokens, the attention on the heaviest of them, mean over layers and
        questions. `map`: the overlap (Jaccard) of the 64 heaviest frames of any two wordings, mean over
        layers. `alike`: mean cosine of these frames' embeddings, and that of any frames.
    """
    wordings = [text for name in PRODUCT for text in BY_NAME[name].wordings[:WORDINGS]]
    before = shot.prefix.keys.shape[2] + sum(one.block.rows for one in shot.window)
    frames = int(flat.frames[-1]) + 1
    curves, sets = [], []
    for text in wordings:
        weights = Weights(before, flat.count)
        world.read(shot, text, flat, policies.everything(flat), observer=weights)
        tops = []
        for weight in weights.layers:
            heavy = np.sort(weight)[::-1].cumsum() / weight.sum()
            curves.append([heavy[max(0, round(share * flat.count) - 1)] for share in SHARES])
            by_frame = np.bincount(flat.frames, weight, frames)
            tops.append(np.argsort(-by_frame, kind="stable")[:BUDGET])
        sets.append(tops)
    unit = seen[:frames] / np.linalg.norm(seen[:frames], axis=1, keepdims=True)

    def alike(rows: np.ndarray) -> float:
        near = unit[rows] @ unit[rows].T
        return float((near.sum() - len(rows)) / (len(rows) * (len(rows) - 1)))

    def overlap(one: list[np.ndarray], other: list[np.ndarray]) -> float:
        told = [len(np.intersect1d(a, b)) / len(np.union1d(a, b)) for a, b in zip(one, other, strict=True)]
        return round(float(np.mean(told)), 3)

    return {
        "coverage": {f"{s:g}": round(float(x), 4) for s, x in zip(SHARES, np.mean(curves, 0), strict=True)},
        "map": [[overlap(one, other) for other in sets] for one in sets],
        "alike": {
            "activated": round(float(np.mean([alike(rows) for tops in sets for rows in tops])), 4),
            "any": round(alike(np.arange(frames)), 4),
        },
    }


def _answers(
    world: World,
    shots: dict[str, tuple[Snapshot, RetrievalSettings]],
    past: Past,
    proxy: Sequence[torch.Tensor],
    per_frame: float,
) -> dict[str, float]:
    """p(yes) by policy of one history."""
    shot = shots["ours"][0]
    choices = flat_choices(past.part, proxy, 1, per_frame)
    out = {name: chosen_by(world, shot, past, choose) for name, choose in choices.items()}
    out |= {name: through(world, own, past, retrieval) for name, (own, retrieval) in shots.items()}
    for frames in FRAME_BUDGETS:
        if frames != BUDGET:
            out[f"ours {frames}"] = through(world, shot, past, replace(RETRIEVAL, frames=frames))
    return out


def pairs(units: Sequence[dict[str, Any]], policy: str) -> list[tuple[float, float, float, int]]:
    """(p of the history with an episode, p of that without, age, number of question and stream) of every
    pair."""
    out, owners = [], 0
    for unit in units:
        bare = {row["question"]: row["p"][policy] for row in unit["rows"] if row["age"] == 0}
        numbers = {name: owners + place for place, name in enumerate(bare)}
        owners += len(bare)
        for row in unit["rows"]:
            if row["age"] > 0:
                name = row["question"]
                out.append((row["p"][policy], bare[name], row["age"], numbers[name]))
    return out


def table(units: Sequence[dict[str, Any]], rounds: int = 2000) -> dict[str, dict[str, Any]]:
    """By policy: `chosen` and `right` with intervals, `chosen` less the default's, and by age.

    Pairs of a question and stream share the history without an episode, so intervals draw these together.
    """
    draw = np.random.default_rng(0)
    names = units[0]["rows"][0]["p"]
    found = {policy: np.array(pairs(units, policy)) for policy in names}
    count = len(found["ours"])
    owners = np.unique(found["ours"][:, 3], return_inverse=True)[1]
    sizes = np.bincount(owners)
    picks = draw.integers(0, len(sizes), (rounds, len(sizes)))

    def chosen(rows: np.ndarray) -> np.ndarray:
        return (rows[:, 0] > rows[:, 1]) + 0.5 * (rows[:, 0] == rows[:, 1])

    def edges(values: np.ndarray) -> list[float]:
        means = np.bincount(owners, values)[picks].sum(1) / sizes[picks].sum(1)
        return [round(float(x), 3) for x in np.quantile(means, (0.025, 0.975))]

    out = {}
    for policy, rows in found.items():
        won = chosen(rows)
        sides = ((rows[:, 0] > 0.5) * 1.0 + (rows[:, 1] <= 0.5)) / 2
        out[policy] = {
            "chosen": round(float(won.mean()), 3),
            "chosen 95 %": edges(won),
            "ours less it 95 %": edges(chosen(found["ours"]) - won),
            "right": round(float(sides.mean()), 3),
            "right 95 %": edges(sides),
        }
        low = 0.0
        for told, high in AGES.items():
            some = won[(rows[:, 2] > low) & (rows[:, 2] <= high)]
            out[policy][f"{told} minutes"] = round(float(some.mean()), 3) if len(some) else None
            low = high
        out[policy]["pairs"] = count
    return out
