"""Answers over memory on all four families: retrieving everything is full attention over the history."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from lookout.models.engines import Question, WindowRequest
from lookout.models.engines.transformers import TransformersEngine, load_engine
from lookout.models.engines.transformers.memory import MemoryAnswer, ask, born_block, frame_embeddings
from lookout.models.engines.transformers.memory.attention import AngleTable, angles_of
from lookout.models.engines.transformers.memory.layout import ask_layout
from lookout.models.engines.transformers.recall import StreamRecall
from lookout.models.windows import Planner, StrideBlock, WindowSettings
from lookout.past.memory import (
    HistoryError,
    MemorySettings,
    Predictor,
    RetrievalSettings,
    Snapshot,
    Span,
    retrieve,
)
from tests.tiny_models import FAMILIES, checkpoint
from tests.unit.models.engines.oracle import axes_of
from tests.unit.models.engines.scenes import block

BLOCKS, WINDOW = 9, 3
SETTINGS = MemorySettings(
    window=WINDOW, construct=4, cluster_tokens=12, visual_frames=4, smallest=4, resident_bytes=1 << 14
)
EVERYTHING = RetrievalSettings(frames=10_000, span=5)
TEXT = "Is anyone lying?"


@functools.cache
def engine(family: str, dtype: torch.dtype = torch.float64) -> TransformersEngine:
    return load_engine(checkpoint(family), dtype=dtype, budget_bytes=1 << 30)


@functools.cache
def remembered(family: str, blocks: int = BLOCKS) -> tuple[StreamRecall, tuple[StrideBlock, ...]]:
    """A stream whose memory was fed window by window, with a question now and then."""
    told = engine(family)
    keeper = StreamRecall(told, "1h", settings=SETTINGS)
    planner = Planner(told.layout, WindowSettings(blocks=WINDOW, key_every=4))
    stream, plan = f"memory-{blocks}/0", None
    history = tuple(block(family, stream, index, frames=2, seed=9) for index in range(blocks))
    for index in range(blocks):
        window = history[max(0, index - WINDOW + 1) : index + 1]
        plan = planner.plan(window, plan)
        told.run([WindowRequest(plan, window)])[0].unwrap()
        keeper.close_block(plan, history[index])
        if index == 6:
            keeper.ask(TEXT, retrieval=RetrievalSettings(frames=4, span=4))
    return keeper, history


@torch.no_grad()
def full_attention(family: str, shot: Snapshot, blocks: list[StrideBlock], span: int) -> torch.Tensor:
    """Logits of Yes and No from one dense pass over born KV of the whole history, written out by hand."""
    told = engine(family)
    model, layout = told.model, told.layout
    step, extent = shot.step, shot.extent
    start = shot.prefix.positions.shape[1]
    first = shot.window[0].first_frame
    frames = len(shot.times_us)
    rank = np.arange(first)
    slots = rank * span // first if first > span else rank + span - first
    slots = np.concatenate([slots, span + np.arange(frames - first)])
    positions = (start + slots[shot.token_frame][:, None] * step).T + shot.token_place
    places = np.concatenate([shot.prefix.positions, positions], 1)
    last = start + (span + frames - first - 1) * step + extent
    suffix = told.suffix(TEXT)
    asked = np.broadcast_to(int(last.max()) + np.arange(len(suffix)), (len(step), len(suffix)))
    axis = axes_of(layout, model.config)
    inv = model.rotary.inv_freq

    def turn(x: torch.Tensor, at: np.ndarray) -> torch.Tensor:
        angle = torch.tensor(at)[axis].double().T * inv
        half = x.shape[-1] // 2
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([turned.real, turned.imag], -1)

    keys, values = history_kv(family, blocks, shot)
    hidden = model.embed(torch.tensor(suffix))
    for number, layer in enumerate(model.layers):
        part = layer.self_attn
        inner = layer.input_layernorm(hidden)
        shape = (len(suffix), -1, model.head_dim)
        query, key, value = (
            p(inner).view(shape).transpose(0, 1) for p in (part.q_proj, part.k_proj, part.v_proj)
        )
        if hasattr(part, "q_norm"):
            query, key = part.q_norm(query), part.k_norm(key)
        seen = torch.cat([turn(keys[number], places), turn(key, asked)], 1)
        told_v = torch.cat([values[number], value], 1)
        groups = model.heads // model.kv_heads
        score = turn(query, asked) @ seen.repeat_interleave(groups, 0).transpose(1, 2) * model.head_dim**-0.5
        hide = torch.ones(len(suffix), len(suffix), dtype=torch.bool).triu(1)
        score[:, :, -len(suffix) :].masked_fill_(hide, float("-inf"))
        out = score.softmax(-1) @ told_v.repeat_interleave(groups, 0)
        hidden = hidden + part.o_proj(out.transpose(0, 1).reshape(len(suffix), -1))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    logits = model.head(model.norm(hidden[-1]))
    return logits[[layout.yes, layout.no]]


@functools.cache
def _born(family: str, blocks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Born KV of every block, captured again from a second run of the same windows."""
    told = engine(family)
    planner = Planner(told.layout, WindowSettings(blocks=WINDOW, key_every=4))
    stream, plan, out = f"memory-{blocks}/0", None, []
    told.close_stream(stream)
    history = [block(family, stream, index, frames=2, seed=9) for index in range(blocks)]
    for index in range(blocks):
        window = history[max(0, index - WINDOW + 1) : index + 1]
        plan = planner.plan(window, plan)
        told.run([WindowRequest(plan, window)])[0].unwrap()
        born = born_block(told, plan, history[index])
        out.append((born.keys, born.values))
    return out


def history_kv(family: str, blocks: list[StrideBlock], shot: Snapshot) -> tuple[torch.Tensor, torch.Tensor]:
    """Prefix and born KV of all blocks [layers, kv_heads, rows, d]."""
    born = _born(family, len(blocks))
    keys = torch.cat([shot.prefix.keys, *(key for key, _ in born)], 2)
    values = torch.cat([shot.prefix.values, *(value for _, value in born)], 2)
    return keys, values


def everything(family: str, **options: object) -> tuple[MemoryAnswer, Snapshot]:
    keeper, _ = remembered(family)
    assert keeper.memory is not None
    shot = keeper.memory.snapshot()
    return ask(engine(family), shot, TEXT, retrieval=EVERYTHING, **options), shot  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_retrieving_everything_is_full_attention(family: str) -> None:
    answer, shot = everything(family)
    _, history = remembered(family)
    assert sum(len(index.partitions) for index in shot.layers) > 0
    for trace in answer.traces:
        assert trace.representatives == 0
        assert trace.tokens == len(shot.token_frame) - sum(one.block.rows for one in shot.window)
    expected = full_attention(family, shot, list(history), EVERYTHING.span)
    found = torch.tensor([answer.yes_logit, answer.no_logit], dtype=torch.float64)
    assert torch.allclose(found, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_past_an_answer_is_the_windows_own(family: str) -> None:
    told = engine(family)
    planner = Planner(told.layout, WindowSettings(blocks=WINDOW))
    only = block(family, "short/0", 0, frames=3, seed=2)
    plan = planner.plan([only])
    answer = told.run([WindowRequest(plan, [only], [Question("q", TEXT)])])[0].unwrap().answers[0]
    keeper = StreamRecall(told, "1h", settings=SETTINGS)
    keeper.close_block(plan, only)
    mine = keeper.ask(TEXT)
    assert mine.p_yes == pytest.approx(answer.p_yes, abs=1e-6)
    assert mine.yes_logit == pytest.approx(answer.yes_logit, abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_prefetching_changes_no_bit(family: str) -> None:
    keeper, _ = remembered(family)
    assert keeper.memory is not None
    shot = keeper.memory.snapshot()
    few = RetrievalSettings(frames=3, span=4)
    told = {
        predictor: ask(engine(family), shot, TEXT, retrieval=few, predictor=predictor)
        for predictor in Predictor
    }
    plain = told[Predictor.NONE]
    for answer in told.values():
        assert (answer.yes_logit, answer.no_logit) == (plain.yes_logit, plain.no_logit)
        assert answer.fetched == plain.fetched
        assert answer.evidence == plain.evidence
    assert sum(t.transfer.early_copies for t in plain.traces) == 0
    assert sum(t.transfer.foreseen for t in told[Predictor.RESIDUAL].traces) > 0


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen2_vl", "qwen3_vl"])
@pytest.mark.parametrize("left", [(0, 1, 3), (0, 3), (0,)])
def test_frames_that_the_newest_block_lacks_move_no_frame_of_the_past(
    family: str, left: tuple[int, ...]
) -> None:
    told = engine(family)
    stream = f"holes-{len(left)}/0"
    keeper = StreamRecall(told, "1h", settings=SETTINGS)
    planner = Planner(told.layout, WindowSettings(blocks=WINDOW, key_every=4))
    history: list[StrideBlock] = []
    plan, steps = None, []
    for index in range(8):
        whole = block(family, stream, index, frames=4, seed=3)
        frames = tuple(whole.frames[number] for number in left) if index == 7 else whole.frames
        history.append(replace(whole, frames=frames))
        plan = planner.plan(history[-WINDOW:], plan)
        told.run([WindowRequest(plan, history[-WINDOW:])])[0].unwrap()
        keeper.close_block(plan, history[-1])
        assert keeper.memory is not None
        layout = ask_layout(keeper.memory.snapshot(), 4, Span(), told.layout.positions)
        steps.append(layout.slots.step.tolist())
    assert steps == [steps[0]] * 8


def test_asking_changes_neither_memory_nor_windows() -> None:
    keeper, _ = remembered("internvl")
    assert keeper.memory is not None
    before = keeper.memory.version
    kv = [part.clone() for part in engine("internvl").kv("memory-9/0").keys]
    ask(engine("internvl"), keeper.memory.snapshot(), TEXT)
    assert keeper.memory.version == before
    assert all(torch.equal(a, b) for a, b in zip(kv, engine("internvl").kv("memory-9/0").keys, strict=True))


def test_every_token_is_accounted_for_once() -> None:
    keeper, _ = remembered("internvl")
    assert keeper.memory is not None
    shot = keeper.memory.snapshot()
    for layer, index in enumerate(shot.layers):
        query = torch.randn(64, generator=torch.Generator().manual_seed(layer), dtype=torch.float64)
        settings = RetrievalSettings(frames=2, span=4, breadth=1.0, representatives=True)
        found = retrieve(shot, layer, query, 40, settings)
        stood = int(found.representatives.counts.sum())
        assert found.tokens + stood == int(index.counts.sum())
        assert found.tokens <= 40
        weighed = (found.representatives.keys * found.representatives.counts[:, None]).sum(0)
        for cluster in found.clusters:
            weighed = weighed + cluster.key
        every = [cluster for part in index.partitions if part is not None for cluster in part.clusters]
        assert torch.allclose(weighed, torch.stack([cluster.key for cluster in every]).sum(0), atol=1e-9)
        assert (np.diff(found.representatives.frames) >= 0).all()


@pytest.mark.parametrize("span", [Span(), Span(5, 8)])
@pytest.mark.parametrize("budget", [1, 7, 40])
def test_a_budget_is_read_to_the_token_whatever_the_clusters_hold(budget: int, span: Span) -> None:
    keeper, _ = remembered("internvl")
    assert keeper.memory is not None
    shot = keeper.memory.snapshot()
    for layer, index in enumerate(shot.layers):
        draw = torch.Generator().manual_seed(layer)
        query = torch.randn(index.keys.shape[1], generator=draw, dtype=torch.float64)
        found = retrieve(shot, layer, query, budget, RetrievalSettings(breadth=1.0), span)
        tokens = np.concatenate([cluster.slab.tokens for cluster in found.clusters])
        read = tokens if found.rows is None else tokens[found.rows]
        assert len(np.unique(read)) == len(read) == found.tokens == budget
        assert span.holds(shot.lookup(read)[0]).all()


def test_an_answer_that_read_nothing_is_no_answer() -> None:
    keeper, _ = remembered("internvl")
    assert keeper.memory is not None
    shot = replace(keeper.memory.snapshot(), window=())
    with pytest.raises(HistoryError, match="selected nothing"):
        ask(engine("internvl"), shot, TEXT, retrieval=RetrievalSettings(frames=0))


def test_a_time_range_is_all_that_is_read() -> None:
    keeper, _ = remembered("internvl")
    assert keeper.memory is not None
    shot = keeper.memory.snapshot()
    since, until = int(shot.times_us[4]), int(shot.times_us[9])
    answer = ask(engine("internvl"), shot, TEXT, retrieval=EVERYTHING, since_us=since, until_us=until)
    assert answer.evidence
    assert all(since <= one.time_us < until for one in answer.evidence)
    with pytest.raises(HistoryError, match="nothing is remembered between"):
        ask(engine("internvl"), shot, TEXT, since_us=10**12)


def test_a_time_range_is_searched_whole_whatever_scores_best_elsewhere() -> None:
    """The first stage chooses among visual clusters of the range; the budget is not spent outside it."""
    keeper, _ = remembered("internvl")
    assert keeper.memory is not None
    shot = keeper.memory.snapshot()
    span = Span(2, 3)
    for layer, index in enumerate(shot.layers):
        draw = torch.Generator().manual_seed(layer)
        query = torch.randn(index.keys.shape[1], generator=draw, dtype=torch.float64)
        found = retrieve(shot, layer, query, 10_000, RetrievalSettings(breadth=1.0), span)
        frames, _ = shot.lookup(np.concatenate([c.slab.tokens for c in found.clusters]))
        inside = span.holds(shot.token_frame)
        assert span.holds(frames).sum() == inside.sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_looked_up_angles_are_the_computed_ones(family: str) -> None:
    model = engine(family).model
    axes = engine(family).layout.positions.axes
    positions = np.random.default_rng(0).integers(0, 50, (axes, 40))
    told, expected = AngleTable(model, 50).of(positions), angles_of(model, positions)
    assert all(torch.equal(a, b) for a, b in zip(told, expected, strict=True))


def test_representatives_name_no_frame() -> None:
    """A mean stands for many frames: evidence names only frames that were read."""
    keeper, _ = remembered("internvl")
    assert keeper.memory is not None
    shot = keeper.memory.snapshot()
    few = RetrievalSettings(frames=1, span=4, representatives=True)
    answer = ask(engine("internvl"), shot, TEXT, retrieval=few)
    assert max(trace.representatives for trace in answer.traces) > 0
    read = set(shot.times_us[shot.window[0].first_frame :].tolist())
    for layer, trace in enumerate(answer.traces):
        for cluster in keeper.memory.clusters(layer):
            if cluster.id in trace.ids:
                read |= set(shot.times_us[shot.lookup(cluster.slab.tokens)[0]].tolist())
    assert {one.time_us for one in answer.evidence} <= read
    assert sum(one.share for one in answer.evidence) < 1


def test_text_is_written_over_what_the_question_read() -> None:
    keeper, _ = remembered("internvl")
    pieces: list[str] = []
    answer = keeper.ask("What happened?", describe=6, on_text=pieces.append)
    assert answer.text == "".join(pieces)
    assert len(answer.text or "") > 0


def test_dropped_groups_keep_the_look_they_had() -> None:
    one = block("internvl", "look/0", 0, frames=2, keep=0.5, seed=4)
    found = frame_embeddings(one)
    latest = one.frames[0].tokens.clone()
    latest[torch.from_numpy(one.frames[1].kept)] = one.frames[1].tokens
    assert torch.allclose(found[0], one.frames[0].tokens.mean(0), atol=1e-6)
    assert torch.allclose(found[1], latest.mean(0), atol=1e-6)


def test_a_bias_on_keys_does_not_decide_where_tokens_go() -> None:
    """Clustering with and without a large constant in every key is the same."""
    from lookout.past.memory import CameraMemory
    from tests.unit.past.memory.records import SHAPE, SMALL, block as record, play, prefix

    plain = CameraMemory(SHAPE, prefix(), SMALL)
    bias = torch.full((SHAPE.layers, SHAPE.width), 40.0)
    moved = CameraMemory(SHAPE, prefix(), SMALL, bias=bias)
    for index in range(6):
        one = record(index)
        plain.add(one)
        moved.add(replace(one, keys=one.keys + 40.0))
    for layer in range(SHAPE.layers):
        groups = [
            sorted(tuple(sorted(c.slab.tokens.tolist())) for c in m.clusters(layer)) for m in (plain, moved)
        ]
        assert groups[0] == groups[1]
    play(plain, 1, first=6)
