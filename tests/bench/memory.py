"""Mosaic's figures, side by side with what it has to beat, in one resumable run.

`make bench-memory` or `python -m tests.bench.memory`. Every unit of work (a stream, a length) writes a file
under `out/bench-memory/` and is not done again; `--minutes` ends a run early, the next one goes on. Time is
this thread's CPU time, so ratios hold on a busy machine; what would travel over a link is added by the link
model (`lookout.memory.links`), apart.

Streams are rendered cameras (`tests/bench/memory_streams.py`) at one sample every two seconds, seen by the
trained tiny model. At equal budget, 64 frames of tokens in every layer, each policy reads an hour of history:

- none: the window alone
- newest, uniform, random frames: born KV of those frames; recompute: uniform frames computed again
- token, frame: ReKV's two levels; exact: what attention over everything weighs most
- agnostic: StreamMem-style, kept whatever is asked; compressed: LiveVLM's scheme
- visual, semantic: one level of clusters only; random clusters: ours, drawn; ours

`recall` is the share of the exact top-k that a policy read, `mass` the attention it caught of what the exact
top-k caught, `evidence` the share of tokens of frames that show the asked-for thing (bounded by the budget),
all means over layers; `dp` the mean |difference| of p(yes) to attention over everything. Intervals are
bootstrap 95 % over streams and questions. `right` is the chance that a question whose answer is yes gets a
higher p(yes) than one whose answer is no (0.5: chance); weights trained for history come later.

The last line is JSON: {"ttft_vs_token": ratio, "flat_10m_10h": ratio, "recall": {policy: x}, "evidence":
{policy: x}, "splits_deferred": x, "prefetch_hits": x, "index_share": x}.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from lookout.engines import Question, WindowRequest, load_engine
from lookout.engines.transformers import TransformersEngine
from lookout.engines.transformers.memory import (
    Clock,
    LayerTrace,
    MemoryAnswer,
    ask,
    clock,
    key_bias,
    shape_of,
)
from lookout.memory import (
    LINKS,
    BornBlock,
    CameraMemory,
    KVShape,
    LayerWork,
    MemorySettings,
    Predictor,
    RetrievalSettings,
    Snapshot,
    SplitMode,
    ThresholdRule,
    overlapped_s,
    serial_s,
)
from lookout.memory.attention import merged, partial
from lookout.models import TINY
from lookout.vision import FrameInput, Tower, load_tower
from lookout.windows import EncodedFrame, Planner, StrideBlock, WindowSettings
from tests.bench import memory_policies as policies
from tests.bench.memory_policies import Choice, Flat, FlatReader
from tests.bench.memory_streams import FRAMES, STEP_S, WINDOW, Played, Spec, episodes, play, play_long
from watchbench.questions import BY_NAME, PRODUCT

BUDGET, SPAN = 64, 32
SETTINGS = MemorySettings(resident_bytes=4 << 20)
RETRIEVAL = RetrievalSettings(frames=BUDGET, span=SPAN)
FIXED = replace(RETRIEVAL, representatives=256)
OURS = {
    "ours, no representatives": replace(RETRIEVAL, representatives=0),
    "ours, weighted by log size": replace(RETRIEVAL, weighted=True),
    "ours, breadth 1": replace(RETRIEVAL, breadth=1.0),
    "ours, breadth 4": replace(RETRIEVAL, breadth=4.0),
    "ours, breadth 16": replace(RETRIEVAL, breadth=16.0),
}
LEVELS = {
    "visual": replace(
        SETTINGS, visual_frames=6, visual_cap=12, smallest_visual=2, cluster_tokens=10**6, smallest=10**9
    ),
    "semantic": replace(SETTINGS, visual_frames=10**9, visual_cap=10**9, visual_limit=1e9),
}
KINDS = ("room", "carpark", "doorway")
QUALITY = [Spec(KINDS[i % 3], i + 1, 1.0) for i in range(4)] + [Spec("room", 20, 1.0, 10)]
LONG = Spec("carpark", 40, 10.0)
POINTS = {"10m": 300, "30m": 900, "1h": 1800, "2h": 3600, "5h": 9000, "10h": 18000}
SEVEN_B = KVShape(28, 4, 128, 1, torch.bfloat16)


class World:
    """The model, and where results are kept."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.tower: Tower = load_tower(TINY)
        self.engine: TransformersEngine = load_engine(TINY, budget_bytes=1 << 30)

    def stream(self, spec: Spec) -> Played:
        """A stream, played once and kept."""
        return play(spec, self.tower, self.engine, self.out / "streams")

    def memory(self, played: Played, settings: MemorySettings = SETTINGS) -> CameraMemory:
        """An empty memory for a stream."""
        model = self.engine.model
        return CameraMemory(shape_of(model, 1), played.prefix, settings, bias=key_bias(model))

    def ask(self, shot: Snapshot, question: str, **more: Any) -> MemoryAnswer:
        """One answer with the bench's budgets."""
        return ask(self.engine, shot, question, **{"retrieval": RETRIEVAL, **more})

    def read(
        self, shot: Snapshot, question: str, flat: Flat, choose: Choice, **more: Any
    ) -> tuple[MemoryAnswer, list[np.ndarray]]:
        """One answer that reads what `choose` names of the flat history."""
        readers: list[FlatReader] = []

        def make(traces: Sequence[LayerTrace]) -> FlatReader:
            readers.append(FlatReader(flat, choose, traces))
            return readers[-1]

        answer = self.ask(shot, question, reader=make, predictor=Predictor.NONE, **more)
        return answer, readers[0].read_tokens


def feed(
    memory: CameraMemory, blocks: Sequence[BornBlock], world: World | None = None, every: int = 150
) -> None:
    """Feed blocks; with a world, a question every `every` frames, whose fetches the memory hears of."""
    asked = 0
    for number, block in enumerate(blocks):
        memory.add(block)
        if world is not None and (number + 1) * FRAMES % every < FRAMES and memory.visual is not None:
            text = BY_NAME[PRODUCT[asked % len(PRODUCT)]].text
            answer = world.ask(memory.snapshot(), text, resident=memory.residency.__contains__)
            memory.settle(answer.fetched)
            asked += 1


# Quality: what a policy reads, and what its answers lose.


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
) -> dict[str, float]:
    """Recall, mass, evidence and frames of one answer, means over layers."""
    rows = []
    for mine, weight, top in zip(read, weights.layers, best, strict=True):
        hit = len(np.intersect1d(mine, top)) / len(top)
        mass = weight[mine].sum() / weight[top].sum()
        found = evidence[mine].sum() / max(1, min(len(top), evidence.sum()))
        rows.append((hit, mass, found))
    return dict(zip(("recall", "mass", "evidence"), np.mean(rows, 0).tolist(), strict=True))


def proxy_queries(world: World, shot: Snapshot, flat: Flat) -> list[torch.Tensor]:
    """The mean query of the prompt's own tail in every layer: what a query-agnostic memory scores with."""
    seen: list[torch.Tensor] = []

    def choose(layer: int, query: torch.Tensor) -> np.ndarray:
        seen.append(query)
        return np.zeros(0, np.int64)

    world.read(shot, "", flat, choose)
    return seen


def recomputed(world: World, played: Played, visible: int, question: str) -> tuple[float, float]:
    """p(yes) and CPU seconds over uniform frames of the history computed again, as one window."""
    grid = world.tower.grid
    keep = np.ones((grid.group_rows, grid.group_cols), bool)
    picked = np.unique(np.linspace(0, visible - 1, BUDGET).round().astype(int))
    frames = [*picked.tolist(), *range(visible, min(played.frames, visible + WINDOW * FRAMES))]
    count = -(-len(frames) // FRAMES)
    blocks = [
        StrideBlock(
            "again/0",
            index,
            tuple(
                EncodedFrame(round(f * STEP_S * 1e6), i == 0, keep, played.tokens[f])
                for i, f in enumerate(frames[index * FRAMES : (index + 1) * FRAMES])
            ),
        )
        for index in range(count)
    ]
    planner = Planner(world.engine.layout, WindowSettings(blocks=count))
    begun = clock()
    plan = planner.plan(blocks, key=True)
    answer = world.engine.run([WindowRequest(plan, blocks, [Question("q", question)], keep=False)])[
        0
    ].unwrap()
    return answer.answers[0].p_yes, clock() - begun


def quality(world: World, spec: Spec) -> dict[str, Any]:
    """All policies on one hour."""
    played = world.stream(spec)
    made: dict[str, CameraMemory] = {}
    counts: dict[str, Any] = {}
    variants = {
        "ours": SETTINGS,
        "formula": replace(SETTINGS, rule=ThresholdRule.FORMULA),
        "eager": replace(SETTINGS, split=SplitMode.EAGER),
        **LEVELS,
    }
    for name, settings in variants.items():
        begun = clock()
        made[name] = world.memory(played, settings)
        feed(made[name], played.blocks, world if name in ("ours", "formula", "eager") else None)
        size = made[name].size(SEVEN_B)
        count = made[name].count
        counts[name] = {
            "splits": count.splits,
            "invalid": count.invalid,
            "deferred": count.deferred,
            "avoided": count.avoided,
            "promoted": count.promoted,
            "moved_bytes": count.moved_bytes,
            "clusters": size.clusters,
            "index_share": size.share,
            "seconds": clock() - begun,
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
        text = BY_NAME[name].text
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
        found: dict[str, dict[str, float]] = {}
        for policy, choose in choices.items():
            answer, read = world.read(shot, text, flat, choose)
            found[policy] = {**score(read, weights, best, evidence), "p": answer.p_yes}
        for policy, memory in {
            "ours": ours,
            **{k: made[k] for k in ("formula", "visual", "semantic")},
        }.items():
            answer = world.ask(memory.snapshot(), text)
            found[policy] = {**score(tokens_of(answer, memory), weights, best, evidence), "p": answer.p_yes}
        for policy, changed in OURS.items():
            answer = world.ask(shot, text, retrieval=changed)
            found[policy] = {**score(tokens_of(answer, ours), weights, best, evidence), "p": answer.p_yes}
        nothing = [np.zeros(0, np.int64) for _ in best]
        alone, _ = world.read(shot, text, flat, lambda layer, query: np.zeros(0, np.int64))
        found["none"] = {**score(nothing, weights, best, evidence), "p": alone.p_yes}
        again, _ = recomputed(world, played, visible, text)
        found["recompute"] = {"p": again}
        rows.append(
            {
                "question": name,
                "true": bool(played.truth[:, number].any()),
                "shown": int(shown.sum()),
                "p_all": whole.p_yes,
                "policies": found,
            }
        )
    hits = {predictor.value: prefetching(world, ours, predictor) for predictor in Predictor}
    return {
        "stream": spec.name,
        "budget": budget,
        "counts": counts,
        "questions": rows,
        "prefetch": hits,
        "together": together(world, ours),
    }


def spread(memory: CameraMemory) -> float:
    """Mean variance of unit keys inside clusters, weighted by members: lower is tighter."""
    from lookout.memory.statistics import unit_variance

    total, count = 0.0, 0
    for layer in range(memory.shape.layers):
        for part in memory.layers[layer].partitions:
            if part is not None:
                total += float((unit_variance(part.units, part.counts) * part.counts).sum())
                count += int(part.counts.sum())
    return total / max(1, count)


def prefetching(world: World, memory: CameraMemory, predictor: Predictor) -> dict[str, float]:
    """Hits of one predictor over all questions, layers after the first."""
    needed = foreseen = wasted = moved = 0
    chance: list[float] = []
    for name in PRODUCT:
        answer = world.ask(memory.snapshot(), BY_NAME[name].text, predictor=predictor)
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


def together(world: World, memory: CameraMemory) -> dict[str, float]:
    """Co-activation: overlap (Jaccard) of the clusters fetched by two wordings of one question, by two
    questions, and by chance."""
    shot = memory.snapshot()
    sets = {name: [world.ask(shot, text).fetched for text in BY_NAME[name].wordings[:3]] for name in PRODUCT}

    def overlap(a: Any, b: Any) -> float:
        told = [len(set(a[k]) & set(b[k])) / max(1, len(set(a[k]) | set(b[k]))) for k in a if k in b]
        return float(np.mean(told))

    same = [overlap(v[0], other) for v in sets.values() for other in v[1:]]
    names = list(sets)
    other = [overlap(sets[a][0], sets[b][0]) for i, a in enumerate(names) for b in names[i + 1 :]]
    draw = np.random.default_rng(0)
    chance = []
    for layer, ids in sets[names[0]][0].items():
        every = np.array([c.id for c in memory.clusters(layer)])
        for _ in range(20):
            a, b = (set(draw.choice(every, len(ids), replace=False).tolist()) for _ in range(2))
            chance.append(len(a & b) / len(a | b))
    return {
        "same question": float(np.mean(same)),
        "other question": float(np.mean(other)),
        "chance": float(np.mean(chance)),
    }


# Time: to the first token, by length of history and by budget.


def timed(run: Callable[[], MemoryAnswer], repeats: int = 7) -> dict[str, Any]:
    """Median CPU time of an answer and of its stages; links apart."""
    told = [run() for _ in range(repeats + 1)][1:]
    told.sort(key=lambda answer: answer.cost.first_token_s)
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


def lengths(world: World) -> dict[str, Any]:
    """Time to the first token from ten minutes to ten hours of one camera."""
    played = play_long(LONG, world.tower, world.engine, world.out / "streams")
    memory = world.memory(played)
    whole = Flat.of(played.blocks)
    out: dict[str, Any] = {}
    done, build = 0, 0.0
    for name, frames in tqdm(POINTS.items(), desc="lengths"):
        begun = clock()
        feed(memory, played.blocks[done : frames // FRAMES], world, every=600)
        build += clock() - begun
        done = frames // FRAMES
        shot = memory.snapshot()
        visible = shot.window[0].first_frame
        rows = times(world, shot, whole.until(shot.window[0].first_token))
        size = memory.size()
        rows |= {"kv_bytes": size.kv_bytes, "index_bytes": size.index_bytes, "clusters": size.clusters}
        rows |= {"build_s": build, "index_share": memory.size(SEVEN_B).share}
        rows["visual"] = len(memory.layers[0].counts)
        rows["recompute_s"] = recomputed(world, played, visible, BY_NAME["vehicle"].text)[1]
        out[name] = rows
    return out


def times(world: World, shot: Snapshot, flat: Flat) -> dict[str, Any]:
    """Time to the first token of every way to read one snapshot."""
    text = BY_NAME["vehicle"].text
    budget = round(BUDGET * flat.count / shot.window[0].first_frame)
    frame_level = policies.frame_level(flat, BUDGET, budget)

    def flat_read(choose: Choice) -> Callable[[], MemoryAnswer]:
        return lambda: world.read(shot, text, flat, choose)[0]

    return {
        "none": timed(flat_read(lambda layer, query: np.zeros(0, np.int64))),
        "token": timed(flat_read(policies.token_level(flat, budget))),
        "frame": timed(flat_read(frame_level)),
        "ours": timed(lambda: world.ask(shot, text)),
        "ours, prefetched": timed(lambda: world.ask(shot, text, predictor=Predictor.RESIDUAL)),
        "ours, no representatives": timed(
            lambda: world.ask(shot, text, retrieval=OURS["ours, no representatives"])
        ),
        "ours, fixed representatives": timed(lambda: world.ask(shot, text, retrieval=FIXED)),
    }


def budgets(world: World) -> dict[str, Any]:
    """Time, recall and evidence at an hour by frame budget."""
    played = world.stream(QUALITY[1])
    memory = world.memory(played)
    feed(memory, played.blocks)
    shot = memory.snapshot()
    flat = Flat.of(played.blocks).until(shot.window[0].first_token)
    before = shot.prefix.keys.shape[2] + sum(one.block.rows for one in shot.window)
    out: dict[str, Any] = {}
    for frames in (8, 16, 32, 64, 128):
        budget = round(frames * flat.count / shot.window[0].first_frame)
        settings = replace(RETRIEVAL, frames=frames)
        told: dict[str, list[dict[str, float]]] = {"ours": [], "token": [], "uniform": []}
        for number, name in enumerate(PRODUCT):
            text = BY_NAME[name].text
            weights = Weights(before, flat.count)
            whole, _ = world.read(shot, text, flat, policies.everything(flat), observer=weights)
            best = [np.sort(np.argsort(-w, kind="stable")[:budget]) for w in weights.layers]
            evidence = played.truth[: shot.window[0].first_frame, number][flat.frames]
            answer = world.ask(shot, text, retrieval=settings)
            read = {"ours": (answer, tokens_of(answer, memory))}
            for policy, choose in (
                ("token", policies.token_level(flat, budget)),
                ("uniform", policies.uniform_frames(flat, frames, budget)),
            ):
                read[policy] = world.read(shot, text, flat, choose)
            for policy, (one, rows) in read.items():
                told[policy].append(
                    {
                        **score(rows, weights, best, evidence),
                        "dp": abs(one.p_yes - whole.p_yes),
                        "shown": float(evidence.any()),
                    }
                )
        out[str(frames)] = {
            policy: {
                "recall": float(np.mean([r["recall"] for r in rows])),
                "dp": float(np.mean([r["dp"] for r in rows])),
                "evidence": float(np.mean([r["evidence"] for r in rows if r["shown"]] or [0.0])),
            }
            for policy, rows in told.items()
        }
        rows = spent(world, shot, flat, settings, budget)
        for policy, seconds in rows.items():
            out[str(frames)][policy]["first_token_s"] = seconds
    return out


def spent(
    world: World, shot: Snapshot, flat: Flat, settings: RetrievalSettings, budget: int
) -> dict[str, float]:
    """Seconds to the first token under one budget."""
    text, choose = BY_NAME["vehicle"].text, policies.token_level(flat, budget)
    return {
        "ours": timed(lambda: world.ask(shot, text, retrieval=settings))["first_token_s"],
        "token": timed(lambda: world.read(shot, text, flat, choose)[0])["first_token_s"],
    }


def executors(world: World) -> dict[str, Any]:
    """Batching while encoding, and gathered attention against merged partial softmaxes."""
    spec = QUALITY[0]
    pixels = np.concatenate([told for _, (told, _) in zip(range(6), episodes(spec), strict=False)])[:160]
    keep = np.ones((world.tower.grid.group_rows, world.tower.grid.group_cols), bool)
    inputs = [FrameInput(one[None], keep) for one in pixels]
    times: dict[str, float] = {}
    begun = clock()
    tokens = torch.stack([one.tokens for one in world.tower.encode(inputs)])
    times["vision, all at once"] = (clock() - begun) / len(pixels)
    begun = clock()
    for one in inputs:
        world.tower.encode([one])
    times["vision, one by one"] = (clock() - begun) / len(pixels)
    for name, per in (("one by one", 1), (f"{FRAMES} a block", FRAMES), ("16 a block", 16)):
        times[f"windows, {name}"] = _windows(world, tokens, per, keep) / len(pixels)
    played = world.stream(spec)
    for name, cut in (("one by one", True), (f"{FRAMES} a block", False)):
        memory = world.memory(played)
        blocks = played.blocks[:225]
        if cut:
            blocks = [part for block in blocks for part in _cut(block)]
            memory.settings = replace(memory.settings, window=WINDOW * FRAMES)
        begun = clock()
        feed(memory, blocks)
        times[f"assignment, {name}"] = (clock() - begun) / (225 * FRAMES)
    memory = world.memory(played)
    feed(memory, played.blocks)
    shot, text = memory.snapshot(), BY_NAME["person"].text
    attention = {
        "gathered": timed(lambda: world.ask(shot, text, gathered=True))["first_token_s"],
        "merged in two": timed(lambda: world.ask(shot, text, gathered=False))["first_token_s"],
        **slabwise(shot, memory),
    }
    return {"encoding_s_per_frame": times, "attention_s": attention}


def _windows(world: World, tokens: torch.Tensor, per: int, keep: np.ndarray) -> float:
    """CPU seconds of the language model over frames that arrive `per` at a time."""
    frames = WINDOW * FRAMES
    planner = Planner(world.engine.layout, WindowSettings(blocks=max(1, frames // per), key_every=10_000))
    stream, plan, blocks = f"batch-{per}/0", None, []
    total = 0.0
    for index in range(len(tokens) // per):
        mine = tuple(
            EncodedFrame(round((index * per + i) * STEP_S * 1e6), i == 0, keep, tokens[index * per + i])
            for i in range(per)
        )
        blocks = [*blocks, StrideBlock(stream, index, mine)][-max(1, frames // per) :]
        begun = clock()
        plan = planner.plan(blocks, plan)
        world.engine.run([WindowRequest(plan, blocks)])[0].unwrap()
        total += clock() - begun
    world.engine.close_stream(stream)
    return total


def _cut(block: BornBlock) -> Iterator[BornBlock]:
    """A block as one block per frame."""
    for frame in range(block.frames):
        rows = np.flatnonzero(block.frame == frame)
        index = torch.from_numpy(rows)
        yield replace(
            block,
            index=block.index * block.frames + frame,
            times_us=block.times_us[frame : frame + 1],
            embeddings=block.embeddings[frame : frame + 1],
            frame=np.zeros(len(rows), np.int64),
            places=block.places[:, rows],
            keys=block.keys[:, :, index],
            values=block.values[:, :, index],
        )


def slabwise(shot: Snapshot, memory: CameraMemory) -> dict[str, float]:
    """One layer's attention over 24 slabs of ours: copied together and attended in one call, or slab by slab
    as partial softmaxes that are merged."""
    clusters = sorted(memory.clusters(2), key=lambda c: -c.count)[:24]
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(6, 12, 32, generator=draw)

    def gather() -> torch.Tensor:
        data = torch.cat([c.slab.data for c in clusters])
        key, value = data[:, 0].transpose(0, 1), data[:, 1].transpose(0, 1)
        return merged([partial(query, key, value, 0.2)])

    def slabs() -> torch.Tensor:
        parts = []
        for c in clusters:
            data = c.slab.data
            parts.append(partial(query, data[:, 0].transpose(0, 1), data[:, 1].transpose(0, 1), 0.2))
        return merged(parts)

    assert torch.allclose(gather(), slabs(), atol=1e-5)
    out = {}
    for name, run in (("24 slabs gathered, one layer", gather), ("24 slabs merged, one layer", slabs)):
        spent = []
        for _ in range(30):
            begun = clock()
            run()
            spent.append(clock() - begun)
        out[name] = statistics.median(spent)
    return out


# Reporting.


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Mean and bootstrap 95 % interval."""
    told = np.array(values)
    draw = np.random.default_rng(seed)
    means = told[draw.integers(0, len(told), (2000, len(told)))].mean(1)
    return float(told.mean()), float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def table(units: Sequence[dict[str, Any]]) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Per policy: recall, mass, evidence and |dp| with intervals."""
    rows = [(row, unit) for unit in units for row in unit["questions"]]
    names = list(dict.fromkeys(name for row, _ in rows for name in row["policies"]))
    out: dict[str, dict[str, tuple[float, float, float]]] = {}
    for name in names:
        told = [(row["policies"][name], row) for row, _ in rows]
        out[name] = {"dp": interval([abs(mine["p"] - row["p_all"]) for mine, row in told])}
        for metric in ("recall", "mass", "evidence"):
            values = [
                mine[metric]
                for mine, row in told
                if metric in mine and (metric != "evidence" or row["shown"] > 0)
            ]
            if values:
                out[name][metric] = interval(values)
    return out


def show(title: str, told: dict[str, dict[str, tuple[float, float, float]]]) -> None:
    """Print a table of policies."""
    print(f"\n{title}")
    print(f"{'policy':28}" + "".join(f"{metric:>24}" for metric in ("recall", "mass", "evidence", "dp")))
    for name, row in sorted(told.items(), key=lambda item: -item[1].get("recall", (0,))[0]):
        cells = [
            f"{row[m][0]:.3f} [{row[m][1]:.3f}, {row[m][2]:.3f}]" if m in row else ""
            for m in ("recall", "mass", "evidence", "dp")
        ]
        print(f"{name:28}" + "".join(f"{cell:>24}" for cell in cells))


def plots(told: dict[str, Any], folder: Path) -> None:
    """Time to the first token by length and by budget, as pictures."""
    from tests.bench.memory_plots import lines

    long = told["lengths"]
    hours = [POINTS[name] * STEP_S / 3600 for name in long]
    lines(
        folder / "memory-length.png",
        "time to first token, ms (CPU) by hours of history",
        hours,
        {
            name: [long[point][name]["first_token_s"] * 1000 for point in long]
            for name in ("token", "frame", "ours", "ours, fixed representatives", "none")
        },
    )
    sizes = told["budgets"]
    lines(
        folder / "memory-budget.png",
        "recall of the exact top-k by frame budget",
        [float(name) for name in sizes],
        {name: [sizes[point][name]["recall"] for point in sizes] for name in ("ours", "token", "uniform")},
    )


def rights(units: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Per policy the chance that a true question gets a higher p(yes) than a false one of the same kind."""
    out: dict[str, float] = {}
    rows = [row for unit in units for row in unit["questions"]]
    for policy in [*rows[0]["policies"], "everything"]:
        wins = []
        for name in PRODUCT:
            told = [
                (row["true"], row["p_all"] if policy == "everything" else row["policies"][policy]["p"])
                for row in rows
                if row["question"] == name
            ]
            yes, no = [p for t, p in told if t], [p for t, p in told if not t]
            wins += [float(a > b) + 0.5 * float(a == b) for a in yes for b in no]
        out[policy] = float(np.mean(wins)) if wins else float("nan")
    return out


def rounded(row: dict[str, Any], keys: Sequence[str], digits: int = 4) -> dict[str, float]:
    """Some of a row's figures, rounded."""
    return {key: round(float(row[key]), digits) for key in keys}


def milliseconds(row: dict[str, Any], names: Sequence[str]) -> dict[str, float]:
    """Time to the first token of some policies."""
    return {name: round(row[name]["first_token_s"] * 1000, 1) for name in names}


WAYS = ("none", "token", "frame", "ours", "ours, no representatives", "ours, fixed representatives")


def report(told: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Print everything; returns what the last line says."""
    fixed = [told[spec.name] for spec in QUALITY if not spec.cut]
    cuts = [told[spec.name] for spec in QUALITY if spec.cut]
    units = [*fixed, *cuts]
    show("an hour of one scene", table(fixed))
    show("an hour with a scene cut every ten minutes", table(cuts))
    print("\nright:", rounded(rights(units), list(rights(units)), 3))
    print("\nmaintenance, means over streams")
    for name, keys in units[0]["counts"].items():
        means = {key: float(np.mean([unit["counts"][name][key] for unit in units])) for key in keys}
        print(f"{name:12}", rounded(means, list(means)))
    print("\nprefetching: hits, chance, bytes moved for nothing, each with its interval")
    hits = {}
    for predictor in (Predictor.QUERY, Predictor.PROJECTED, Predictor.RESIDUAL):
        rows = [unit["prefetch"][predictor.value] for unit in units]
        hits[predictor.value] = {key: interval([row[key] for row in rows]) for key in rows[0]}
        shown = {key: [round(x, 3) for x in value] for key, value in hits[predictor.value].items()}
        print(f"{predictor.value:12}", shown)
    kinds = {key: float(np.mean([unit["together"][key] for unit in units])) for key in units[0]["together"]}
    print("\nclusters fetched together (Jaccard):", rounded(kinds, list(kinds), 3))
    lengths_report(told["lengths"])
    print("\nby frame budget:", json.dumps(told["budgets"], indent=1))
    print("\nencoding and attention:", json.dumps(told["executors"], indent=1))
    plots(told, folder)
    return last_line(units, hits, told["lengths"])


def lengths_report(long: dict[str, Any]) -> None:
    """Print the times by length and, at an hour, over links and by stage."""
    print("\ntime to the first token (CPU ms), by length")
    for point, row in long.items():
        more = {
            "recompute": round(row["recompute_s"] * 1000, 1),
            "representatives": round(row["ours"]["representatives"]),
            "visual": row["visual"],
            "index": round(row["index_share"], 4),
        }
        print(f"{point:5}", milliseconds(row, WAYS), more)
    hour = long["1h"]
    print("\nan hour over a link (ms): token-level gathered on the host, ours without and with prefetching")
    for link in LINKS:
        token, ours, ahead = (
            hour[name]["links"][link.name] for name in ("token", "ours", "ours, prefetched")
        )
        row = {
            "token": token["gathered"],
            "ours": ours["serial"],
            "ours, gathered": ours["gathered"],
            "prefetched": ahead["overlapped"],
        }
        print(f"{link.name:14}", {name: round(value * 1000, 1) for name, value in row.items()})
    stages = {key: hour["ours"][key] / hour["ours"]["first_token_s"] for key in STAGES}
    print("\nshares of an answer at an hour:", rounded(stages, STAGES, 3))


STAGES = ("retrieve_s", "move_s", "attend_s")


def last_line(units: Sequence[dict[str, Any]], hits: dict[str, Any], long: dict[str, Any]) -> dict[str, Any]:
    """What scripts read."""
    every = table(units)
    count = {name: sum(unit["counts"][name]["splits"] for unit in units) for name in ("ours", "eager")}
    hour, bounded = long["1h"], "ours, fixed representatives"
    flat = long["10h"][bounded]["first_token_s"] / long["10m"][bounded]["first_token_s"]
    best = max(hits, key=lambda name: float(hits[name]["hits"][0]))
    return {
        "ttft_vs_token": round(hour["token"]["first_token_s"] / hour["ours"]["first_token_s"], 2),
        "flat_10m_10h": round(flat, 2),
        "recall": {name: round(row["recall"][0], 3) for name, row in every.items() if "recall" in row},
        "evidence": {name: round(row["evidence"][0], 3) for name, row in every.items() if "evidence" in row},
        "splits_deferred": round(1 - count["ours"] / max(1, count["eager"]), 3),
        "prefetch_hits": round(hits[best]["hits"][0], 3),
        "index_share": round(long["10h"]["index_share"], 4),
    }


def main() -> None:
    """Run what is not done yet, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench-memory"), help="where results are kept")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no unit after so many minutes")
    parser.add_argument("--only", default="", help="only units whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    Clock.now = staticmethod(time.thread_time)
    begun = time.monotonic()
    units: dict[str, Callable[[World], dict[str, Any]]] = {
        **{spec.name: lambda world, spec=spec: quality(world, spec) for spec in QUALITY},  # type: ignore[misc]
        "budgets": budgets,
        "executors": executors,
        "lengths": lengths,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {}
    world: World | None = None
    for name, run in tqdm(units.items(), desc="units"):
        path = options.out / f"{name}.json"
        if not path.is_file() and options.only in name and time.monotonic() - begun < options.minutes * 60:
            world = world or World(options.out)
            result = json.dumps(run(world))
            path.with_suffix(".part").write_text(result)
            path.with_suffix(".part").replace(path)
        if path.is_file():
            told[name] = json.loads(path.read_text())
    if len(told) < len(units):
        print(json.dumps({"bench": "memory", "done": len(told), "of": len(units)}))
        return
    print(json.dumps({"bench": "memory", **report(told, options.out)}))


if __name__ == "__main__":
    main()
