"""The vLLM engine against the transformers engine on the same plans, in unpatched vLLM on CPU."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bench.row_policies import CACHEBLEND, RANDOM_K, VLCACHE
from lookout.models.engines import (
    DeviceError,
    Engine,
    PlanError,
    PositionError,
    Question,
    StreamFailedError,
    StreamLostError,
    UnsupportedModelError,
    WindowRequest,
)
from lookout.models.windows import EncodedFrame, Policy, RowPolicy, StrideBlock
from tests.tiny_models import FAMILIES
from tests.unit.models.engines.scenes import engine as reference
from tests.vllm.scenes import QUESTIONS, apart, blocks_of, planner, same_cost, slide

pytestmark = pytest.mark.vllm
CLOSE = 5e-5
CAMERAS = ("gate/0", "yard-2/0", "hall/0")

each_family = pytest.mark.parametrize(
    ("vllm_engine", "family"),
    [
        # Every family starts an engine of its own. These have positions in one axis and in three.
        pytest.param(f, f, marks=() if f in ("internvl", "qwen3_vl") else pytest.mark.long, id=f)
        for f in FAMILIES
    ],
    indirect=["vllm_engine"],
)
one_family = pytest.mark.parametrize(
    ("vllm_engine", "family"), [("internvl", "internvl")], indirect=["vllm_engine"], ids=["internvl"]
)


@each_family
@pytest.mark.parametrize("policy", [Policy.REFRESH, pytest.param(RANDOM_K, marks=pytest.mark.long)])
def test_chained_windows_of_mixed_cameras_equal_the_transformers_engine(
    vllm_engine: Any, family: str, policy: Policy | RowPolicy
) -> None:
    """Three cameras in every batch, three questions; reused, refreshed and new rows, FLOPs."""
    assert isinstance(vllm_engine, Engine)
    streams = [f"{policy}-{camera}" for camera in CAMERAS]
    for batch in slide(family, planner(vllm_engine, policy), streams, range(5), {}):
        wanted, got = reference(family).run(batch), vllm_engine.run(batch)
        for one, other in zip(got, wanted, strict=True):
            assert apart(one, other) < CLOSE
            assert same_cost(one, other)
    for stream in streams:
        reference(family).close_stream(stream)
        vllm_engine.close_stream(stream)
    assert vllm_engine.memory() == []
    assert vllm_engine.backend.call("lookout_held") == [(0, 0)]
    assert vllm_engine.backend.call("lookout_memory") == [{}]


@one_family
@pytest.mark.parametrize("policy", [Policy.REUSE_ALL, Policy.FRONT, Policy.PRUNE_ONLY, Policy.FULL])
def test_the_other_policies_are_plans_on_the_same_footing(
    vllm_engine: Any, family: str, policy: Policy | RowPolicy
) -> None:
    for batch in slide(family, planner(vllm_engine, policy), [f"{policy}/0"], range(5), {}):
        one, other = vllm_engine.run(batch)[0], reference(family).run(batch)[0]
        assert apart(one, other) < CLOSE
        assert same_cost(one, other)
    reference(family).close_stream(f"{policy}/0")
    vllm_engine.close_stream(f"{policy}/0")


@each_family
def test_stored_kv_is_the_canonical_kv_of_the_other_engine(vllm_engine: Any, family: str) -> None:
    stream = "kv/0"
    for batch in slide(family, planner(vllm_engine), [stream], range(5), {}):
        reference(family).run(batch)[0].unwrap()
        vllm_engine.run(batch)[0].unwrap()
    wanted = reference(family).kv(stream)
    held = vllm_engine.backend.call("lookout_stream", stream)[0]
    for index, (key, value) in enumerate(held.layers.values()):
        torch.testing.assert_close(
            key.transpose(0, 1), wanted.keys[index][:, : wanted.rows], atol=2e-5, rtol=1e-4
        )
        torch.testing.assert_close(
            value.transpose(0, 1), wanted.values[index][:, : wanted.rows], atol=2e-5, rtol=1e-4
        )
    reference(family).close_stream(stream)
    vllm_engine.close_stream(stream)


@each_family
def test_further_questions_and_text_over_a_held_window(vllm_engine: Any, family: str) -> None:
    """A window is asked again without computing a row of it, and text is generated only on Yes."""
    plans, previous = planner(vllm_engine), {}
    for batch in slide(family, plans, ["held/0"], range(4), previous):
        reference(family).run(batch)[0].unwrap()
        vllm_engine.run(batch)[0].unwrap()
    questions = [Question(str(i), f"Question {i}?", describe=6) for i in range(5)]
    again = [WindowRequest(plans.hold(previous["held/0"]), (), questions)]
    wanted, got = reference(family).run(again)[0], vllm_engine.run(again)[0]
    assert apart(got, wanted) < CLOSE
    assert [one.text for one in got.answers] == [one.text for one in wanted.answers]
    assert {one.text is None for one in got.answers if one.p_yes <= 0.5} <= {True}
    assert got.cost.tokens_reused == got.cost.tokens_kept
    reference(family).close_stream("held/0")
    vllm_engine.close_stream("held/0")


@each_family
def test_structured_questions_have_the_probabilities_of_the_other_engine(
    vllm_engine: Any, family: str
) -> None:
    """Answers of one token, and of several of which one begins another."""
    plans, previous = planner(vllm_engine), {}
    asked = [
        Question("count", "How many? [0..5] when count >= 3"),
        Question("plain", "Is it open?"),
        Question("gate", "Is it open? [open, off, opened] when class in {open}"),
        Question("tens", "How many? [1, 10, 2] when count > 1"),
    ]
    for batches in slide(family, plans, ["answers/0"], range(3), previous):
        batch = [replace(request, questions=asked) for request in batches]
        wanted, got = reference(family).run(batch)[0].unwrap(), vllm_engine.run(batch)[0].unwrap()
        assert apart(got, wanted) < CLOSE
        assert same_cost(got, wanted)
        for one, other in zip(got.answers, wanted.answers, strict=True):
            assert one.shares == pytest.approx(other.shares, abs=CLOSE)
            assert one.tokens == other.tokens
    again = vllm_engine.ask(previous["answers/0"], asked[:1]).answers[0]
    assert again.shares == pytest.approx(got.answers[0].shares, abs=CLOSE)
    reference(family).close_stream("answers/0")
    vllm_engine.close_stream("answers/0")


@one_family
def test_approximate_kv_never_meets_the_exact_prefix_cache(vllm_engine: Any, family: str) -> None:
    """A window of reused KV, then the same token ids as a plain request: computed afresh, and exact."""
    from lookout.models.engines.vllm.internals import EngineCall

    batches = slide(family, planner(vllm_engine, Policy.REUSE_ALL), ["salt/0"], range(4), {})
    plan = batches[-1][0].plan
    ids = np.where(plan.token_ids < 0, 0, plan.token_ids).tolist()
    plain = EngineCall(
        window="none", held="none", prompt=ids, load=0, ask=False, salt="plain-1", answers=(3, 5)
    )
    before = vllm_engine.backend.generate([plain])[0]
    for batch in batches:
        vllm_engine.run(batch)[0].unwrap()
    after = vllm_engine.backend.generate([replace(plain, salt="plain-2")])[0]
    assert after.cached == 0
    assert after.logits == pytest.approx(before.logits, abs=CLOSE)
    vllm_engine.close_stream("salt/0")


@one_family
def test_an_audit_leaves_the_stream_as_it_is(vllm_engine: Any, family: str) -> None:
    plans, previous = planner(vllm_engine), {}
    for batch in slide(family, plans, ["audit/0"], range(4), previous):
        vllm_engine.run(batch)[0].unwrap()
    blocks = blocks_of(family, "audit/0", 3)
    whole = WindowRequest(plans.plan(blocks, key=True), blocks, QUESTIONS, keep=False)
    held = vllm_engine.memory()
    assert apart(vllm_engine.run([whole])[0], reference(family).run([whole])[0]) < CLOSE
    assert vllm_engine.memory() == held
    following = blocks_of(family, "audit/0", 4)
    plan = plans.plan(following, previous["audit/0"])
    assert vllm_engine.run([WindowRequest(plan, following, QUESTIONS)])[0].error is None
    vllm_engine.close_stream("audit/0")


@one_family
def test_a_stream_that_fails_in_a_batch_leaves_its_neighbours_alone(vllm_engine: Any, family: str) -> None:
    previous: dict[str, Any] = {}
    streams = ["well/0", "lost/0", "fine/0"]
    batches = slide(family, planner(vllm_engine), streams, range(5), previous)
    for batch in batches[:4]:
        reference(family).run(batch)
        vllm_engine.run(batch)
    vllm_engine.backend.call("lookout_release", [], ["lost/0"])  # a worker lost it; the engine does not know
    wanted, got = reference(family).run(batches[4]), vllm_engine.run(batches[4])
    assert isinstance(got[1].error, StreamFailedError)
    assert "lost/0: window 4 failed" in str(got[1].error)
    assert apart(got[0], wanted[0]) < CLOSE
    assert apart(got[2], wanted[2]) < CLOSE
    assert [one.stream for one in vllm_engine.memory()] == ["well/0", "fine/0"]
    again = vllm_engine.run([batches[4][1]])[0]
    assert isinstance(again.error, StreamLostError)
    fresh = planner(vllm_engine).plan(batches[4][1].blocks)
    assert vllm_engine.run([WindowRequest(fresh, batches[4][1].blocks, QUESTIONS)])[0].error is None
    for stream in streams:
        reference(family).close_stream(stream)
        vllm_engine.close_stream(stream)


@one_family
@pytest.mark.parametrize("stage", ["window", "question"])
def test_a_forward_that_raises_costs_one_stream_only(
    vllm_engine: Any, family: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's step itself raises while a stream is in the batch: its neighbours run again and are right."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    streams = [f"ok-{stage}/0", f"sick-{stage}/0", f"too-{stage}/0"]
    batches = slide(family, planner(vllm_engine), streams, range(4), {})
    for batch in batches[:3]:
        reference(family).run(batch)
        vllm_engine.run(batch)
    connector = get_kv_transfer_group().worker
    feed = connector._feed

    def failing(offset: int, share: Any, *rest: Any) -> None:
        if share.window.startswith("sick") and share.ask == (stage == "question"):
            raise RuntimeError("device lost")
        feed(offset, share, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(connector, "_feed", failing)
        got = vllm_engine.run(batches[3])
    wanted = reference(family).run(batches[3])
    assert "device lost" in str(got[1].error)
    assert apart(got[0], wanted[0]) < CLOSE
    assert apart(got[2], wanted[2]) < CLOSE
    assert [one.stream for one in vllm_engine.memory()] == [streams[0], streams[2]]
    assert vllm_engine.backend.call("lookout_held") == [(0, 0)]
    for stream in streams:
        reference(family).close_stream(stream)
        vllm_engine.close_stream(stream)
    assert vllm_engine.backend.call("lookout_memory") == [{}]


@one_family
@pytest.mark.parametrize("times", [1, 100], ids=["once", "always"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), ValueError("no such row")])
def test_kv_that_cannot_be_loaded_for_a_later_question_is_no_answer(
    vllm_engine: Any, family: str, error: Exception, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions behind the first read the window's KV from the store. A load that stops after some layers
    leaves pages of other rows: the stream runs again or fails, and its neighbour is right."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    streams = ["ok-load/0", "sick-load/0"]
    batches = slide(family, planner(vllm_engine), streams, range(4), {})
    for batch in batches[:3]:
        reference(family).run(batch)
        vllm_engine.run(batch)
    connector = get_kv_transfer_group().worker
    load, layers, failures = connector._load, connector.layers, 0

    def failing(share: Any, window: Any) -> None:
        nonlocal failures
        if not (share.ask and share.window.startswith("sick") and failures < times):
            return load(share, window)
        failures += 1
        some = list(layers())[:2]

        def broken() -> Any:
            yield from some
            raise error

        with monkeypatch.context() as inner:
            inner.setattr(connector, "layers", broken)
            load(share, window)

    with monkeypatch.context() as patch:
        patch.setattr(connector, "_load", failing)
        got = vllm_engine.run(batches[3])
    wanted = reference(family).run(batches[3])
    assert failures > 0
    assert apart(got[0], wanted[0]) < CLOSE
    if times == 1:
        assert apart(got[1], wanted[1]) < CLOSE
    else:
        assert isinstance(got[1].error, StreamFailedError)
        assert str(error) in str(got[1].error)
        assert vllm_engine.held("sick-load/0") is None
    assert vllm_engine.backend.call("lookout_held") == [(0, 0)]
    for stream in streams:
        reference(family).close_stream(stream)
        vllm_engine.close_stream(stream)
    assert vllm_engine.backend.call("lookout_memory") == [{}]


@one_family
def test_embeddings_that_are_not_finite_fail_their_stream_only(vllm_engine: Any, family: str) -> None:
    plans = planner(vllm_engine)
    good, bad = blocks_of(family, "good/0", 2), blocks_of(family, "sick/0", 2)
    frame = bad[1].frames[0]
    sick = EncodedFrame(frame.time_us, frame.anchor, frame.keep, torch.full_like(frame.tokens, float("nan")))
    broken = [bad[0], StrideBlock("sick/0", 1, (sick, *bad[1].frames[1:])), bad[2]]
    batch = [
        WindowRequest(plans.plan(good), good, QUESTIONS),
        WindowRequest(plans.plan(broken), broken, QUESTIONS),
    ]
    for _ in range(3):  # the blocks that the sick stream used come back to others
        first, second = vllm_engine.run(batch)
        assert apart(first, reference(family).run(batch[:1])[0]) < CLOSE
        assert isinstance(second.error, StreamFailedError)
    healed = vllm_engine.run([WindowRequest(plans.plan(bad), bad, QUESTIONS)])[0]
    assert healed.error is None
    for stream in ("good/0", "sick/0"):
        vllm_engine.close_stream(stream)
        reference(family).close_stream(stream)
    for layer in vllm_engine.backend.call("lookout_tables")[0]:
        assert bool(layer.isfinite().all())  # a page's next owner would read it
    assert vllm_engine.backend.call("lookout_memory") == [{}]


@one_family
@pytest.mark.parametrize("policy", [CACHEBLEND, VLCACHE])
def test_policies_beyond_a_block_table_are_refused(
    vllm_engine: Any, family: str, policy: Policy | RowPolicy
) -> None:
    batches = slide(family, planner(vllm_engine, policy), ["peer/0"], range(4), {})
    answers = [vllm_engine.run(batch)[0] for batch in batches]
    assert isinstance(answers[3].error, PlanError)
    assert "run it on the transformers engine" in str(answers[3].error)
    vllm_engine.close_stream("peer/0")


@one_family
def test_what_cannot_run_is_refused_with_one_error(vllm_engine: Any, family: str) -> None:
    plans = planner(vllm_engine)
    blocks = blocks_of(family, "bad/0", 2)
    plan = plans.plan(blocks)
    many = [Question("long", "word " * 3000)]
    far = replace(plan, question_position=1 << 20)
    gone = plans.plan(blocks_of(family, "bad/0", 3), plan)
    cases = [
        (WindowRequest(plan, blocks[:1], QUESTIONS), PlanError, "their embeddings are missing"),
        (WindowRequest(plan, blocks, many), PlanError, "the block table has room for"),
        (WindowRequest(far, blocks, QUESTIONS), PositionError, "has positions up to"),
        (WindowRequest(gone, blocks_of(family, "bad/0", 3), QUESTIONS), StreamLostError, "plan a key window"),
    ]
    for request, kind, words in cases:
        error = vllm_engine.run([request])[0].error
        assert isinstance(error, kind)
        assert words in str(error)
    twice = vllm_engine.run([WindowRequest(plan, blocks), WindowRequest(plan, blocks)])
    assert twice[0].error is None
    assert "only one window per stream" in str(twice[1].error)
    assert vllm_engine.run([]) == []
    vllm_engine.close_stream("bad/0")


@one_family
@pytest.mark.parametrize(("share", "least"), [(0.8, 0.6), pytest.param(0.5, 0.3, marks=pytest.mark.long)])
def test_under_a_budget_a_sticky_subset_of_cameras_keeps_its_kv(
    vllm_engine: Any, family: str, share: float, least: float
) -> None:
    """Ten cameras in a circle: least recently used would lose every window of all."""
    plans, previous = planner(vllm_engine), dict[str, Any]()
    streams = [f"{number}/0" for number in range(10)]
    rows = [plans.plan(blocks_of(family, stream, 4)).rows for stream in streams]
    limit, vllm_engine._budget.limit = (
        vllm_engine._budget.limit,
        int(share * sum(rows) * vllm_engine.shape.row_bytes),
    )
    kept = asked = 0
    try:
        for window in range(8):
            for stream in streams:
                blocks, before = blocks_of(family, stream, window), previous.get(stream)
                continues = before is not None and vllm_engine.held(stream) == before.digest
                if before is not None and not continues:
                    lost = WindowRequest(plans.plan(blocks, before), blocks, QUESTIONS)
                    assert isinstance(vllm_engine.run([lost])[0].error, StreamLostError)
                previous[stream] = plans.plan(blocks, before if continues else None)
                vllm_engine.run([WindowRequest(previous[stream], blocks, QUESTIONS[:1])])[0].unwrap()
                held = sum(one.device_bytes for one in vllm_engine.memory())
                assert held <= vllm_engine._budget.limit
                if window > 2:
                    asked, kept = asked + 1, kept + continues
    finally:
        vllm_engine._budget.limit = limit
        for stream in streams:
            vllm_engine.close_stream(stream)
    assert kept / asked >= least
    assert vllm_engine.backend.call("lookout_memory") == [{}]


@one_family
def test_out_of_memory_halves_the_batch_and_a_dead_device_raises(
    vllm_engine: Any, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [f"half-{number}/0" for number in range(5)]
    batches = slide(family, planner(vllm_engine), streams, range(4), {})
    for batch in batches[:3]:
        reference(family).run(batch)
        vllm_engine.run(batch)
    sizes: list[int] = []
    generate = vllm_engine.backend.generate

    def small(calls: Any) -> Any:
        sizes.append(len(calls))
        if len({call.window for call in calls}) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(calls)

    with monkeypatch.context() as patch:
        patch.setattr(vllm_engine.backend, "generate", small)
        got = vllm_engine.run(batches[3])
    for one, other in zip(got, reference(family).run(batches[3]), strict=True):
        assert apart(one, other) < CLOSE
    assert sizes[:2] == [5, 2]
    assert vllm_engine.backend.call("lookout_held") == [(0, 0)]

    def dead(calls: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    again = slide(family, planner(vllm_engine), ["fresh/0"], range(1), {})[0]
    with monkeypatch.context() as patch:
        patch.setattr(vllm_engine.backend, "generate", dead)
        with pytest.raises(DeviceError, match="illegal memory access"):
            vllm_engine.run(again)
        with pytest.raises(DeviceError, match="restart the process"):
            vllm_engine.run([])
    vllm_engine._broken = None  # the device of this test is well
    vllm_engine.backend.call("lookout_release", list(vllm_engine.backend.call("lookout_windows")[0]), [])
    for stream in streams:
        reference(family).close_stream(stream)
        vllm_engine.close_stream(stream)


@one_family
def test_a_device_without_memory_keeps_no_page_of_a_window(
    vllm_engine: Any, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory runs out while KV is caught, and once more when the window runs alone: the engine gives up. What
    it had begun holds no page, and a later window is not kept waiting by it."""
    from lookout.models.engines.vllm.store import Captured

    scheduler = vllm_engine.backend.llm.llm_engine.engine_core.engine_core.scheduler
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks
    pages, put, calls = free(), Captured.put, itertools.count(1)

    def short(self: Captured, *arguments: Any) -> None:
        if next(calls) in (3, 4):
            raise torch.OutOfMemoryError("CUDA out of memory")
        put(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Captured, "put", short)
        with pytest.raises(DeviceError, match="out of memory"):
            vllm_engine.run(slide(family, planner(vllm_engine), ["short/0"], range(1), {})[0])
    assert (free(), len(scheduler.requests)) == (pages, 0)
    vllm_engine._broken = None  # the device of this test is well
    batch = slide(family, planner(vllm_engine), ["short/0"], range(1), {})[0]
    assert apart(vllm_engine.run(batch)[0], reference(family).run(batch)[0]) < CLOSE
    assert vllm_engine.backend.call("lookout_held") == [(0, 0)]
    reference(family).close_stream("short/0")
    vllm_engine.close_stream("short/0")


@one_family
def test_an_engine_that_brings_nothing_is_broken(
    vllm_engine: Any, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lookout.models.engines.vllm.internals import backend

    engine = vllm_engine.backend.llm.llm_engine
    with monkeypatch.context() as patch:
        patch.setattr(backend, "STEP_S", 0.05)
        patch.setattr(engine, "step", list)
        with pytest.raises(DeviceError, match=r"no output for 0\.05 s"):
            vllm_engine.run(slide(family, planner(vllm_engine), ["stuck/0"], range(1), {})[0])
    vllm_engine._broken = None  # the engine of this test is well
    assert not engine.has_unfinished_requests()
    vllm_engine.close_stream("stuck/0")


@one_family
def test_eighty_frames_of_256_tokens_fit(vllm_engine: Any, family: str) -> None:
    from lookout.models.engines.sizing import WINDOW_ROWS

    label = len(vllm_engine.layout.label.ids(0)) + len(vllm_engine.layout.frame_open) + 1
    assert 80 * (256 + label) + len(vllm_engine.layout.prefix) + 100 < WINDOW_ROWS


@each_family
def test_the_layers_get_the_same_addresses_in_every_step(vllm_engine: Any, family: str) -> None:
    """What captured CUDA graphs replay; windows of other sizes and question steps are views of one buffer."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    model = get_kv_transfer_group().worker.model
    inner, seen, sizes = model.language_model.model.forward, set[tuple[int, ...]](), set[int]()

    def noted(ids: Any, positions: Any, middle: Any, embeds: Any, *levels: Any) -> Any:
        from vllm.forward_context import get_forward_context

        if not get_forward_context().skip_compiled:  # refreshed ranges run outside of graphs
            deep = [level for one in levels for level in one.tensors.values()]
            seen.add(tuple(part.data_ptr() for part in (positions, embeds, *deep)))
            sizes.add(len(embeds))
        return inner(ids, positions, middle, embeds, *levels)

    model.language_model.model.forward = noted
    try:
        for batch in slide(family, planner(vllm_engine), ["a/0", "yard/0"], range(4), {}):
            for answer in vllm_engine.run(batch):
                answer.unwrap()
    finally:
        model.language_model.model.forward = inner
        for stream in ("a/0", "yard/0"):
            vllm_engine.close_stream(stream)
    assert len(sizes) > 2
    assert len(seen) == 1


def test_positions_have_the_same_strides_in_the_largest_step_as_in_others() -> None:
    """Compiled layers are traced with the largest step and read by its strides ever after."""
    from lookout.models.engines.vllm.internals.model import InputBuffers

    buffers = InputBuffers(8, 4, 0, torch.float32)
    whole, part = (
        buffers.take(torch.zeros(3, rows, dtype=torch.int64), torch.zeros(rows, 4)) for rows in (8, 5)
    )
    assert whole.positions.stride() == part.positions.stride()
    assert not whole.positions.is_contiguous()


@each_family
def test_vllm_rotates_by_float64_angles_in_float32(vllm_engine: Any, family: str) -> None:
    """Far positions, bfloat16 queries: as float64 has them, to one rounding of the result."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    model = get_kv_transfer_group().worker.model
    wide, draw = model.language_model.model.layers[0].self_attn.rotary_emb, torch.Generator().manual_seed(0)
    axes = vllm_engine.layout.positions.axes
    positions = torch.randint(20_000, 32_000, (axes, 50), generator=draw)
    exact = model.rotation.angles(positions, torch.float64)
    for dtype, close in ((torch.float32, 1e-6), (torch.bfloat16, 5e-3)):
        query, key = (torch.randn(50, heads * 32, generator=draw).to(dtype) for heads in (4, 2))
        got = wide(positions if axes > 1 else positions[0], query.clone(), key.clone())
        for one, given in zip(got, (query, key), strict=True):
            want = model.rotation.rotate(given.double().view(50, -1, 32).transpose(0, 1), exact)
            apart = (one.view(50, -1, 32).transpose(0, 1).double() - want).abs() / want.abs().clamp(min=1)
            assert one.dtype == dtype
            assert float(apart.max()) < close


def test_unsupported_checkpoints_are_refused_before_vllm_starts(tmp_path: Any) -> None:
    from transformers import Qwen2Config

    from lookout.models.engines.vllm import load_engine

    Qwen2Config().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="qwen2"):
        load_engine(tmp_path)
