"""What the transformers engine promises beside the oracle: reuse, isolation, budget, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.row_policies import CACHEBLEND, RANDOM_K, ROW_POLICIES, VLCACHE
from lookout.models.engines import (
    Engine,
    MemoryBudgetError,
    PlanError,
    PositionError,
    Question,
    StreamFailedError,
    StreamLostError,
    TextSettings,
    UnsupportedModelError,
    WindowAnswer,
    WindowRequest,
    load_engine,
)
from lookout.models.engines.transformers import TransformersEngine, load_engine as load_transformers
from lookout.models.engines.transformers.forward import PassWork
from lookout.models.engines.transformers.kv import StreamKV
from lookout.models.flops import causal_pairs
from lookout.models.windows import (
    Planner,
    Policy,
    RowPolicy,
    RowRange,
    StrideBlock,
    WindowPlan,
    WindowSettings,
    rows_in,
    with_digest,
)
from tests.tiny_models import FAMILIES, FEW_FAMILIES, checkpoint
from tests.unit.models.engines.scenes import block, engine

QUESTIONS = (Question("a", "Is anyone lying?"), Question("b", "Any smoke?"))
POLICIES: list[Policy | RowPolicy] = [Policy.REFRESH, CACHEBLEND, VLCACHE]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def runner(family: str) -> Iterator[TransformersEngine]:
    one = engine(family)
    yield one
    for held in one.memory():
        one.close_stream(held.stream)


def planner(
    runner: TransformersEngine, policy: Policy | RowPolicy = Policy.REFRESH, size: int = 3
) -> Planner:
    return Planner(runner.layout, WindowSettings(size, policy, key_every=1000))


def slide(
    runner: TransformersEngine,
    family: str,
    stream: str,
    windows: Sequence[int],
    policy: Policy | RowPolicy = Policy.REFRESH,
    *,
    previous: WindowPlan | None = None,
) -> tuple[list[WindowAnswer], WindowPlan, list[StrideBlock]]:
    """Run consecutive windows of a stream; the last plan and its blocks."""
    answers: list[WindowAnswer] = []
    blocks: list[StrideBlock] = []
    for number in windows:
        blocks = [block(family, stream, index, frames=3) for index in range(max(0, number - 2), number + 1)]
        previous = planner(runner, policy).plan(blocks, previous)
        answers += runner.run([WindowRequest(previous, blocks, QUESTIONS)])
    assert previous is not None
    return answers, previous, blocks


def kv(runner: TransformersEngine, stream: str) -> torch.Tensor:
    """All KV of a stream, [2, layers, kv_heads, rows, head_dim]."""
    held = runner.kv(stream)
    return torch.stack(
        [torch.stack([part[:, : held.rows] for part in parts]) for parts in (held.keys, held.values)]
    )


def yes(answer: WindowAnswer) -> list[float]:
    return [one.yes_logit - one.no_logit for one in answer.unwrap().answers]


@pytest.mark.slow
def test_it_is_an_engine(runner: TransformersEngine) -> None:
    assert isinstance(runner, Engine)


def test_refresh_all_equals_full_prefill(runner: TransformersEngine, family: str) -> None:
    _, plan, blocks = slide(runner, family, "cam/0", range(6), Policy.REUSE_ALL)
    stale = kv(runner, "cam/0").clone()
    redo = with_digest(replace(planner(runner).hold(plan), compute=(RowRange(0, plan.rows),)))
    answer = runner.run([WindowRequest(redo, blocks, QUESTIONS)])[0]
    whole = with_digest(replace(plan, stream="cam-b/0", source=np.full(plan.rows, -1), parent=None,
                         compute=(RowRange(0, plan.rows),), layers=None, select=None))  # fmt: skip
    want = runner.run([WindowRequest(whole, blocks, QUESTIONS)])[0]
    torch.testing.assert_close(kv(runner, "cam/0"), kv(runner, "cam-b/0"), atol=1e-5, rtol=1e-5)
    assert yes(answer) == pytest.approx(yes(want), abs=1e-5)
    assert (stale - kv(runner, "cam/0")).abs().max() > 1e-3


def test_zero_shift_is_prefix_caching(runner: TransformersEngine, family: str) -> None:
    """While nothing is evicted, reuse is exact; asking again computes nothing of the window."""
    answers, plan, blocks = slide(runner, family, "cam/0", range(3))
    assert answers[-1].cost.tokens_refreshed == 0
    full = planner(runner).plan(blocks, None)
    want = runner.run([WindowRequest(full, blocks, QUESTIONS, keep=False)])[0]
    assert yes(answers[-1]) == pytest.approx(yes(want), abs=1e-5)
    held = planner(runner).hold(plan)
    again = runner.run([WindowRequest(held, (), QUESTIONS)])[0]
    assert yes(again) == pytest.approx(yes(answers[-1]), abs=1e-5)
    assert again.cost.token_layers == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_poisoned_slots_change_nothing(
    runner: TransformersEngine, family: str, policy: Policy | RowPolicy
) -> None:
    _, plan, _ = slide(runner, family, "cam/0", range(4), policy)
    slide(runner, family, "cam-b/0", [0])
    blocks = [block(family, "cam/0", index, frames=3) for index in range(2, 5)]
    after = planner(runner, policy).plan(blocks, plan)
    held = runner.kv("cam/0")
    keep = np.zeros(held.capacity, bool)
    reused = np.ones(after.rows, bool)
    reused[rows_in(after.runs(3))] = after.select is not None
    keep[after.source[reused & (after.source >= 0)]] = True
    clean = [part.clone() for part in (*held.keys, *held.values)]
    wanted = runner.run([WindowRequest(after, blocks, QUESTIONS)])[0]
    poisoned = torch.from_numpy(~keep)
    for parts, old in ((held.keys, clean[:4]), (held.values, clean[4:])):
        for index, part in enumerate(old):
            # A layer-wise plan reuses early-dropped rows; poison only what no layer reads.
            parts[index] = part.masked_fill(poisoned[None, : part.shape[1], None], float("nan"))
    held.digest, held.rows = plan.digest, plan.rows
    got = runner.run([WindowRequest(after, blocks, QUESTIONS)])[0]
    assert yes(got) == yes(wanted)


def test_asking_leaves_the_kv_untouched(runner: TransformersEngine, family: str) -> None:
    answers, plan, _ = slide(runner, family, "cam/0", range(5))
    before = kv(runner, "cam/0").clone()
    held = planner(runner).hold(plan)
    many = [Question(str(i), f"question {i}?" * (1 + i % 3)) for i in range(7)]
    told = runner.run([WindowRequest(held, (), (*many, *QUESTIONS))])[0].unwrap()
    assert torch.equal(before, kv(runner, "cam/0"))
    assert [one.p_yes for one in told.answers[-2:]] == pytest.approx(
        [one.p_yes for one in answers[-1].answers], abs=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", FEW_FAMILIES, indirect=True)
def test_a_batch_equals_its_streams_alone(runner: TransformersEngine, family: str) -> None:
    names = ["a/0", "b/0", "c/0"]
    policies: list[Policy | RowPolicy] = [Policy.REFRESH, VLCACHE, CACHEBLEND]
    alone = {
        name: slide(runner, family, name, range(5), policy)[0][-1]
        for name, policy in zip(names, policies, strict=True)
    }
    values = {name: kv(runner, name).clone() for name in names}
    for name in names:
        runner.close_stream(name)
    plans: dict[str, WindowPlan | None] = dict.fromkeys(names)
    for number in range(5):
        batch = []
        for name, policy in zip(names, policies, strict=True):
            blocks = [block(family, name, i, frames=3) for i in range(max(0, number - 2), number + 1)]
            plan = planner(runner, policy).plan(blocks, plans[name])
            plans[name] = plan
            batch.append(WindowRequest(plan, blocks, QUESTIONS if name != "b/0" else ()))
        answers = runner.run(batch)
    for name, answer in zip(names, answers, strict=True):
        torch.testing.assert_close(kv(runner, name), values[name], atol=2e-5, rtol=1e-4)
        if name != "b/0":
            assert yes(answer) == pytest.approx(yes(alone[name]), abs=2e-4)


@pytest.mark.slow
def test_a_batch_may_take_several_passes(family: str) -> None:
    wide, narrow = engine(family), load_transformers(checkpoint(family), rows_per_pass=150)
    batch = []
    for name in ("a/0", "b/0", "c/0"):
        blocks = [block(family, name, index, frames=3) for index in range(2)]
        batch.append(WindowRequest(planner(wide).plan(blocks), blocks, QUESTIONS, keep=False))
    for one, other in zip(wide.run(batch), narrow.run(batch), strict=True):
        assert yes(one) == pytest.approx(yes(other), abs=2e-5)
    assert wide.memory() == narrow.memory() == []


@pytest.mark.slow
def test_a_failing_stream_leaves_its_neighbours_untouched(
    runner: TransformersEngine, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = slide(runner, family, "a/0", range(4))[0][-1]
    runner.close_stream("a/0")
    _, a, _ = slide(runner, family, "a/0", range(3))
    _, b, _ = slide(runner, family, "b/0", range(3))
    _, c, _ = slide(runner, family, "c/0", range(3))

    def request(stream: str, plan: WindowPlan, poison: bool = False) -> WindowRequest:
        blocks = [block(family, stream, index, frames=3) for index in range(1, 4)]
        if poison:
            last = blocks[-1].frames[0]
            bad = replace(last, tokens=last.tokens * float("nan"))
            blocks[-1] = replace(blocks[-1], frames=(bad, *blocks[-1].frames[1:]))
        return WindowRequest(planner(runner).plan(blocks, plan), blocks, QUESTIONS)

    place = StreamKV.place

    def breaks(self: StreamKV, *args: object) -> None:
        if self.stream == "c/0":
            raise RuntimeError("a bad row")
        place(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(StreamKV, "place", breaks)
    answers = runner.run([request("b/0", b, poison=True), request("a/0", a), request("c/0", c)])
    assert isinstance(answers[0].error, StreamFailedError)
    assert isinstance(answers[2].error, StreamFailedError)
    assert "a bad row" in str(answers[2].error)
    assert yes(answers[1]) == pytest.approx(yes(want), abs=2e-5)
    assert [held.stream for held in runner.memory()] == ["a/0"]


def test_kv_stays_in_place_and_in_bounds(runner: TransformersEngine, family: str) -> None:
    _, plan, _ = slide(runner, family, "cam/0", range(3))
    held = runner.kv("cam/0")
    homes = [part.data_ptr() for part in (*held.keys, *held.values)]
    for number in range(3, 8):
        capacity = held.capacity
        _, plan, _ = slide(runner, family, "cam/0", [number], previous=plan)
        assert plan.rows <= held.capacity <= 2 * (plan.rows + 64)
        assert held.device_bytes == held.capacity * runner.model.row_bytes
        now = [part.data_ptr() for part in (*held.keys, *held.values)]
        assert (now == homes) == (held.capacity == capacity)
        homes = now


@pytest.mark.slow
@pytest.mark.parametrize("family", FEW_FAMILIES, indirect=True)
def test_streams_leave_under_the_budget_and_come_back_equal(family: str, tmp_path: Path) -> None:
    wide = engine(family)
    want = {f"{i}/0": slide(wide, family, f"{i}/0", range(6))[0][-1] for i in range(4)}
    values = {name: kv(wide, name).clone() for name in want}
    one = wide.kv("0/0").device_bytes
    for name in want:
        wide.close_stream(name)
    tight = load_engine(checkpoint(family), budget_bytes=int(2.2 * one), spill_dir=tmp_path)
    plans: dict[str, WindowPlan | None] = dict.fromkeys(want)
    for number in range(6):
        for name, last in want.items():
            (answer,), plans[name], _ = slide(tight, family, name, [number], previous=plans[name])
            assert answer.error is None
            assert tight.device_bytes <= 2.2 * one
            if number == 5:
                assert yes(answer) == pytest.approx(yes(last), abs=2e-5)
                torch.testing.assert_close(kv(tight, name), values[name], atol=1e-5, rtol=1e-5)
    memory = tight.memory()
    on_device = {held.stream for held in memory if held.device_bytes > 0}
    assert {"0/0", "3/0"} <= on_device  # the first to come keeps its place, the last ran just now
    assert len(on_device) < 4
    assert all((held.spilled_bytes > 0) != (held.device_bytes > 0) for held in memory)
    tight.close()
    assert list(tmp_path.iterdir()) == []
    assert tight.memory() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "damaged",
    [
        lambda data: b"damaged",
        lambda data: data[:-1],
        lambda data: data[:999] + bytes([data[999] ^ 1]) + data[1000:],
    ],
    ids=["other bytes", "cut short", "one bit"],
)
def test_a_damaged_disk_tier_loses_one_stream_only(tmp_path: Path, damaged: Callable[[bytes], bytes]) -> None:
    wide = engine("internvl")
    slide(wide, "internvl", "a/0", range(3))
    one = wide.kv("a/0").device_bytes
    wide.close_stream("a/0")
    tight = load_engine(checkpoint("internvl"), budget_bytes=int(1.2 * one), spill_dir=tmp_path)
    _, a, _ = slide(tight, "internvl", "a/0", range(3))
    _, b, _ = slide(tight, "internvl", "b/0", range(3))
    (file,) = tmp_path.rglob("*.kv")
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(damaged(file.read_bytes()))
    (lost,), _, _ = slide(tight, "internvl", "a/0", [3], previous=a)
    assert isinstance(lost.error, StreamLostError)
    (kept,), _, _ = slide(tight, "internvl", "b/0", [3], previous=b)
    assert kept.error is None
    tight.close()


@pytest.mark.long
@pytest.mark.parametrize(("share", "least"), [(0.8, 0.6), (0.5, 0.3)])
def test_under_a_budget_a_sticky_subset_of_cameras_keeps_its_kv(share: float, least: float) -> None:
    """Ten cameras in a circle, without a disk tier: least recently used would lose every window of all."""
    wide = engine("internvl")
    names = [f"{number}/0" for number in range(10)]
    for name in names:
        slide(wide, "internvl", name, range(3))
    need = wide.device_bytes
    for name in names:
        wide.close_stream(name)
    tight = load_engine(checkpoint("internvl"), budget_bytes=int(share * need))
    plans: dict[str, WindowPlan | None] = dict.fromkeys(names)
    kept = asked = 0
    for number in range(6):
        for name in names:
            previous = plans[name]
            assert (previous is None) == (number == 0)
            continues = previous is not None and tight.held(name) == previous.digest
            (answer,), plans[name], blocks = slide(tight, "internvl", name, [number], previous=previous)
            assert isinstance(answer.error, StreamLostError) == (number > 0 and not continues)
            if answer.error is not None:
                plans[name] = key = planner(tight).plan(blocks, None)
                tight.run([WindowRequest(key, blocks, QUESTIONS)])[0].unwrap()
            assert tight.device_bytes <= share * need
            if number > 2:
                asked, kept = asked + 1, kept + continues
    assert kept / asked >= least
    tight.close()


def test_a_batch_beyond_the_budget_runs_in_turns() -> None:
    wide = engine("internvl")
    batch = []
    for name in ("a/0", "b/0", "c/0", "d/0", "e/0"):
        blocks = [block("internvl", name, index, frames=3) for index in range(3)]
        batch.append(WindowRequest(planner(wide).plan(blocks), blocks, QUESTIONS))
    want = [yes(answer) for answer in wide.run(batch)]
    need = wide.device_bytes
    for request in batch:
        wide.close_stream(request.plan.stream)
    tight = load_engine(checkpoint("internvl"), budget_bytes=need // 2)
    for keep in (False, True):
        got = tight.run([replace(request, keep=keep) for request in batch])
        for one, other in zip(got, want, strict=True):
            assert yes(one) == pytest.approx(other, abs=2e-5)
        assert 0 <= tight.device_bytes <= need // 2
    audit = tight.run([replace(batch[-1], keep=False)])[0]
    assert yes(audit) == pytest.approx(want[-1], abs=2e-5)
    tight.close()


@pytest.mark.slow
@pytest.mark.parametrize("family", FEW_FAMILIES, indirect=True)
def test_every_policy_spends_equal_token_layers(runner: TransformersEngine, family: str) -> None:
    spent: dict[Policy | RowPolicy, int] = {}
    for policy in (*Policy, *ROW_POLICIES):
        answers, plan, _ = slide(runner, family, "cam/0", range(6), policy)
        cost = answers[-1].unwrap().cost
        spent[policy] = cost.token_layers
        assert cost.tokens_kept == plan.rows == cost.tokens_reused + cost.tokens_refreshed + cost.tokens_new
        assert cost.kv_bytes == runner.kv("cam/0").device_bytes
        runner.close_stream("cam/0")
    for policy in (VLCACHE, RANDOM_K, Policy.FRONT):
        assert spent[policy] == pytest.approx(spent[Policy.REFRESH], abs=4)
    assert spent[Policy.REUSE_ALL] < spent[Policy.REFRESH] < spent[Policy.FULL] == spent[Policy.PRUNE_ONLY]


def test_the_cost_of_a_full_window_follows_from_any_cost(runner: TransformersEngine, family: str) -> None:
    """What the same rows would cost computed in full, told by a window that reuses most of them."""
    answers, plan, blocks = slide(runner, family, "cam/0", range(6), Policy.REUSE_ALL)
    whole = planner(runner).plan(blocks, None)
    full = runner.run([WindowRequest(whole, blocks, QUESTIONS, keep=False)])[0].unwrap().cost
    spent = full.total_flops - full.flops["questions"]
    assert answers[-1].cost.full_flops(plan.rows) == full.full_flops(plan.rows) == spent
    mine = answers[-1].cost
    assert mine.total_flops - mine.flops["questions"] < spent


@pytest.mark.parametrize("exchanged", [False, True])
def test_descriptions_follow_a_yes(
    runner: TransformersEngine, family: str, exchanged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random weights say the same to every question: with yes and no exchanged they say the other."""
    if exchanged:
        monkeypatch.setattr(runner, "_answer_rows", runner._answer_rows.flip(0))
    _, plan, _ = slide(runner, family, "cam/0", range(3))
    before = kv(runner, "cam/0").clone()
    held = planner(runner).hold(plan)
    asked = [Question(str(i), f"{i}?", describe=4) for i in range(8)]
    answer = runner.run([WindowRequest(held, (), asked)])[0].unwrap()
    for one in answer.answers:
        assert (one.text is not None) == (one.p_yes > 0.5)
    assert ("describe" in answer.cost.flops) == any(one.p_yes > 0.5 for one in answer.answers)
    assert torch.equal(before, kv(runner, "cam/0"))


def recomputed(
    runner: TransformersEngine, held: WindowPlan, suffix: tuple[int, ...], count: int
) -> list[int]:
    """The tokens that follow a suffix over a window that is held, all of it computed again for each."""
    out: list[int] = []
    for _ in range(count):
        rows, own = np.zeros(0, np.int64), runner.kv(held.stream)
        work = PassWork(0, WindowRequest(held, ()), [(*suffix, *out)], rows, own, held.stream)
        with runner.in_turn():
            token = int(runner.model.head(runner._forward([work])[0])[0].argmax())
        if token in runner.layout.stop:
            break
        out.append(token)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("family", FEW_FAMILIES, indirect=True)
def test_a_text_is_what_its_question_computed_whole_would_write(
    runner: TransformersEngine, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle computes question and text again for every token; the engine computes one row, and each
    question pays for its own text alone."""
    _, plan, _ = slide(runner, family, "cam/0", range(3))
    held = planner(runner).hold(plan)
    asked = [Question(str(i), f"{i}?", describe=(0, 3, 7)[i % 3]) for i in range(9)]
    answer = runner.run([WindowRequest(held, (), asked)])[0].unwrap()
    if answer.answers[1].p_yes <= 0.5:  # random weights say the same to every question
        monkeypatch.setattr(runner, "_answer_rows", runner._answer_rows.flip(0))
        held = planner(runner).hold(held)
        answer = runner.run([WindowRequest(held, (), asked)])[0].unwrap()
    written, layers = 0, runner.model.shape
    for question, one in zip(asked, answer.answers, strict=True):
        if one.text is None:
            assert one.text_flops == 0
            continue
        suffix = runner.suffix(question.text)
        ids = [runner.layout.yes, *recomputed(runner, held, (*suffix, runner.layout.yes), question.describe)]
        rows = min(len(ids), question.describe)  # one more where the text has ended by itself
        assert one.text == runner.text(ids)
        assert one.text_flops == layers.flops(rows, causal_pairs(rows, plan.rows + len(suffix)))
        written += one.text_flops
        free = "".join(runner.write(held, question.text, TextSettings(tokens=5)))
        assert free == runner.text(recomputed(runner, held, suffix, 5))
    assert written
    assert answer.cost.flops["describe"] == written


def test_bad_requests_get_one_clear_error_each(runner: TransformersEngine, family: str) -> None:
    _, plan, blocks = slide(runner, family, "cam/0", range(3))
    good = planner(runner).plan(blocks, None)

    def error(request: WindowRequest) -> Exception:
        answer = runner.run([request])[0]
        assert answer.error is not None
        return answer.error

    assert "embeddings are missing" in str(error(WindowRequest(good, blocks[:1])))
    wrong = replace(blocks[0].frames[0], tokens=blocks[0].frames[0].tokens[:, :64], deepstack=None)
    odd = replace(blocks[0], frames=(wrong, *blocks[0].frames[1:]))
    assert "embeddings (" in str(error(WindowRequest(good, [odd, *blocks[1:]])))
    assert isinstance(
        error(WindowRequest(replace(good, positions=good.positions + 40_000), blocks)), PositionError
    )
    assert isinstance(error(WindowRequest(replace(good, compute=good.compute[:0]), blocks)), PlanError)
    assert isinstance(error(WindowRequest(replace(good, layers=(good.compute,)), blocks)), PlanError)
    newer = [*blocks[1:], block(family, "cam/0", 3)]
    follows = planner(runner).plan(newer, plan)
    assert isinstance(error(WindowRequest(replace(follows, parent="other"), newer)), StreamLostError)
    both = runner.run([WindowRequest(good, blocks), WindowRequest(good, blocks)])
    assert both[0].error is None
    assert isinstance(both[1].error, PlanError)


def test_a_window_beyond_the_budget_is_refused() -> None:
    runner = load_engine(checkpoint("internvl"), budget_bytes=1 << 16)
    blocks = [block("internvl", "a/0", index, frames=3) for index in range(3)]
    answer = runner.run([WindowRequest(planner(runner).plan(blocks), blocks)])[0]
    assert isinstance(answer.error, MemoryBudgetError)


def test_a_folder_that_is_no_known_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"config\.json"):
        load_engine(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    with pytest.raises(UnsupportedModelError, match="mistral"):
        load_engine(tmp_path)
