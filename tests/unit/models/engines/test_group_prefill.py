from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from lookout.models.engines import EngineError, PlanError, Question
from lookout.models.engines.transformers import load_engine
from lookout.models.engines.transformers.prefill import GroupPrefill
from lookout.models.families import load_tower
from lookout.models.windows import EncodedFrame, PositionRangeError
from lookout.recordings import GroupPlan, GroupPlanner, PrefillSettings, RecordingError, Score, grouped
from lookout.recordings.analysis import AnalysisSettings, encode_frames
from lookout.video.files import VideoReader
from tests.meter import Meter
from tests.tiny_models import FAMILIES, FEW_FAMILIES, SIZE, checkpoint
from tests.unit.models.engines.scenes import engine
from tests.unit.recordings import oracle
from tests.unit.video.segments.clips import encode

ASKED = Question("q", "Is anyone there?")
OTHER = Question("r", "Has something been left behind on the table?")


def prefilled(
    family: str,
    shown: Sequence[EncodedFrame],
    how: PrefillSettings,
    questions: Sequence[Question] = (ASKED,),
) -> tuple[GroupPrefill, list[GroupPlan]]:
    """A recording prefilled group by group, and its plans."""
    planner = GroupPlanner(engine(family).layout, how)
    plans = planner.plans("r", shown)
    run = GroupPrefill(engine(family), how, questions=questions)
    for plan, group in zip(plans, grouped(shown, how.group_frames), strict=True):
        run.add(plan, group)
    return run, plans


def entries(run: GroupPrefill) -> list[np.ndarray]:
    """Per layer the prompt rows of the kept entries, [kv_heads, n]."""
    return [part[:, : run.kv.rows].numpy() for part in run.kv.entries]


def yes_no(run: GroupPrefill, question: Question = ASKED) -> np.ndarray:
    answer = run.ask([question])[0][0].answer
    return np.array([answer.yes_logit, answer.no_logit])


def reference(
    family: str, run: GroupPrefill, plans: Sequence[GroupPlan], shown: Sequence[EncodedFrame]
) -> tuple[np.ndarray, dict[str, Any]]:
    layout = engine(family).layout
    suffix = engine(family).suffix(ASKED.text)
    found, state = oracle.logits(family, layout, plans, shown, suffix, entries(run))
    return found[[layout.yes, layout.no]].numpy(), state


# Plans.


@pytest.mark.slow
@pytest.mark.parametrize("family", FEW_FAMILIES)
@settings(max_examples=10, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 99))
def test_groups_have_the_positions_and_rows_of_one_prompt(
    family: str, count: int, size: int, seed: int
) -> None:
    shown = oracle.frames(family, count, seed=seed)
    layout = engine(family).layout
    whole = GroupPlanner(layout, PrefillSettings(group_frames=count)).plans("r", shown)
    parts = GroupPlanner(layout, PrefillSettings(group_frames=size)).plans("r", shown)
    assert len(whole) == 1
    assert (np.concatenate([p.token_ids for p in parts]) == whole[0].token_ids).all()
    assert (np.concatenate([p.positions for p in parts], 1) == whole[0].positions).all()
    assert parts[-1].question_position == whole[0].question_position
    assert [p.before for p in parts] == [sum(q.rows for q in parts[:i]) for i in range(len(parts))]


def test_labels_are_wide_enough_for_the_recording() -> None:
    layout = engine("internvl").layout
    assert layout.label is not None
    planner = GroupPlanner(layout, frames=12_000)
    assert planner.label is not None
    assert planner.label.width == 5
    plan = planner.plan("r", oracle.frames("internvl", 2))
    digits = list(planner.label.digits)
    ids = plan.token_ids[plan.parts[1].start :][: planner.label.tokens]
    assert [digits.index(int(i)) for i in ids if int(i) in digits] == [0, 0, 0, 0, 1]


@given(st.integers(1, 500), st.floats(0.01, 1))
def test_how_many_rows_stay(rows: int, rho: float) -> None:
    keep = PrefillSettings(rho=rho).keeps(rows)
    assert 1 <= keep <= rows
    assert rho * rows - 1e-6 <= keep < rho * rows + 1
    assert PrefillSettings(rho=0.2).keeps(15) == 3


@pytest.mark.parametrize("how", [{"rho": 0.0}, {"rho": 1.5}, {"group_frames": 0}])
def test_settings_that_make_no_sense(how: dict[str, float]) -> None:
    with pytest.raises(RecordingError, match="must be"):
        PrefillSettings(**how)  # type: ignore[arg-type]


def test_plans_that_cannot_be_made() -> None:
    layout = engine("internvl").layout
    planner = GroupPlanner(layout)
    shown = oracle.frames("internvl", 3)
    empty = dataclasses.replace(shown[0], keep=np.zeros_like(shown[0].keep), tokens=shown[0].tokens[:0])
    with pytest.raises(RecordingError, match="none of the 1 frames of a group has a kept token"):
        planner.plan("r", [empty])
    with pytest.raises(RecordingError, match="not in time order"):
        planner.plan("r", list(reversed(shown)))
    short = dataclasses.replace(layout, positions=dataclasses.replace(layout.positions, limit=20))
    with pytest.raises(PositionRangeError, match="shorter parts"):
        GroupPlanner(short).plan("r", shown)


# The prefill.


@pytest.mark.parametrize("family", FEW_FAMILIES)
@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_everything_kept_equals_one_prefill(family: str, size: int) -> None:
    """One-shot prefill is the oracle's plain causal pass: every row sees all rows up to its own."""
    shown = oracle.frames(family, 9)
    run, plans = prefilled(family, shown, PrefillSettings(group_frames=size, rho=1.0))
    assert all((each == np.arange(run.kv.rows)).all() for each in entries(run))
    truth, state = reference(family, run, plans, shown)
    rows = sum(plan.rows for plan in plans)
    assert (state["seen"][0][0][:rows, :rows] == np.tri(rows, dtype=bool)).all()
    assert yes_no(run) == pytest.approx(truth, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", FEW_FAMILIES)
@pytest.mark.parametrize("score", list(Score))
def test_the_same_entries_kept_give_the_same_answer(family: str, score: Score) -> None:
    shown = oracle.frames(family, 8)
    run, plans = prefilled(family, shown, PrefillSettings(group_frames=3, rho=0.3, score=score))
    truth, _ = reference(family, run, plans, shown)
    assert yes_no(run) == pytest.approx(truth, abs=2e-4)
    whole, _ = prefilled(family, shown, PrefillSettings(group_frames=3, rho=1.0))
    assert np.abs(yes_no(whole) - truth).max() > 1e-3, "pruning that changes nothing proves nothing"


def test_allowed_answers_have_the_probabilities_of_the_dense_pass() -> None:
    """At each place where answers part: after the question (0 or 1), and after 1 (its end, or 10)."""
    family, text = "internvl", "How many? [0, 1, 10] when count >= 1"
    shown, runner = oracle.frames(family, 4), engine("internvl")
    run, plans = prefilled(family, shown, PrefillSettings(group_frames=2, rho=0.5))
    digits = {"0": ord("0") - ord("!"), "1": ord("1") - ord("!")}  # byte-level: the letters from "!" on
    found = []
    for suffix in runner.asked(text).suffixes:
        logits, _ = oracle.logits(family, runner.layout, plans, shown, suffix, entries(run))
        found.append(logits)
    first = found[0][[digits["0"], digits["1"]]].softmax(0).tolist()
    (end,) = runner.layout.stop
    more = found[1][[end, digits["0"]]].softmax(0).tolist()
    answer = run.ask([ASKED, Question("n", text)])[0][1].answer
    assert answer.shares == pytest.approx([first[0], first[1] * more[0], first[1] * more[1]], abs=1e-4)
    assert answer.p_yes == pytest.approx(first[1], abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("score", [Score.KEY_NORM, Score.LARGE_KEY_NORM, Score.VALUE_NORM])
def test_norms_keep_the_entries_they_name(family: str, score: Score) -> None:
    shown = oracle.frames(family, 8)
    run, plans = prefilled(family, shown, PrefillSettings(group_frames=4, rho=0.4, score=score))
    _, state = reference(family, run, plans, shown)
    for layer, kept in enumerate(entries(run)):
        for head, own in enumerate(kept):
            source = state["values"] if score is Score.VALUE_NORM else state["keys"]
            norm = source[layer][head].norm(dim=-1).numpy() * (-1 if score is Score.KEY_NORM else 1)
            for plan in plans:
                competing = plan.competing + plan.before
                mine = np.intersect1d(own, competing)
                assert len(mine) == plan.keep
                dropped = np.setdiff1d(competing, mine)
                assert norm[mine].min() >= norm[dropped].max() - 1e-4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [4, 2])
def test_attention_keeps_what_the_question_looks_at(family: str, size: int) -> None:
    """The paper scores keys with the queries of the text behind the video (section 3.2). In the first layer,
    whose queries see embeddings only, these are the queries of the oracle's pass: where the question stands
    behind the only group, and where it is placed behind the whole recording."""
    shown = oracle.frames(family, 4)
    how = PrefillSettings(group_frames=size, rho=0.25, score=Score.ATTENTION)
    plans = GroupPlanner(engine(family).layout, how).plans("r", shown)
    run = GroupPrefill(engine(family), how, questions=[ASKED])
    for plan, group in zip(plans, grouped(shown, size), strict=True):
        run.add(plan, group, question_position=plans[-1].question_position)
    _, state = reference(family, run, plans, shown)
    asked = len(engine(family).suffix(ASKED.text))
    keys, queries = oracle.turn(state["keys"][0], state), oracle.turn(state["queries"][0], state)
    heads = keys.shape[0]
    mean = queries[:, -asked:].mean(1).unflatten(0, (heads, -1)).mean(1)
    scores = torch.einsum("hd,hrd->hr", mean, keys).numpy()
    for head, own in enumerate(entries(run)[0]):
        for plan in plans:
            competing = plan.competing + plan.before
            mine = np.intersect1d(own, competing)
            dropped = np.setdiff1d(competing, mine)
            assert len(mine) == plan.keep
            assert scores[head][mine].min() >= scores[head][dropped].max() - 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("family", FEW_FAMILIES)
@pytest.mark.parametrize("score", [Score.RANDOM, Score.ATTENTION])
def test_changed_patches_only_then_pruned_kv(family: str, score: Score) -> None:
    """Both savings at once: patches of a real decode that did not change are not encoded, then part of the KV
    goes. The dense float64 pass over the same tokens, with the entries that stayed, gives the same answer."""
    clip = encode("mp4", frames=40, speed=1, size=(128, 96))
    side = SIZE[family]
    tower, how = load_tower(checkpoint(family), size=(side, side)), AnalysisSettings(fps=2.0, prune=True)
    with VideoReader(clip) as reader:
        decoded = list(reader.sample(2.0, size=(side, side)))
    encoded = encode_frames(tower, decoded, how, None).frames
    full = max(len(frame.kept) for frame in encoded)
    assert any(len(frame.kept) < full for frame in encoded)
    run, plans = prefilled(family, encoded, PrefillSettings(group_frames=2, rho=0.4, score=score))
    truth, _ = reference(family, run, plans, encoded)
    assert yes_no(run) == pytest.approx(truth, abs=2e-4)
    pruned = sum(plan.kept for plan in plans)
    assert pruned < sum(plan.rows for plan in plans)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=6, deadline=None)
@given(st.sampled_from(list(Score)), st.floats(0.05, 0.9), st.integers(1, 4), st.booleans())
def test_the_prefix_stays_and_caches_are_rectangular(
    family: str, score: Score, rho: float, size: int, keep_text: bool
) -> None:
    shown = oracle.frames(family, 6)
    how = PrefillSettings(group_frames=size, rho=rho, score=score, keep_text=keep_text)
    run, plans = prefilled(family, shown, how)
    prefix = np.arange(len(engine(family).layout.prefix))
    text = np.concatenate([np.setdiff1d(np.arange(p.rows), p.competing) + p.before for p in plans])
    for kept in entries(run):
        assert kept.shape[1] == sum(plan.kept for plan in plans)
        for own in kept:
            assert (np.diff(own) > 0).all()
            assert np.isin(prefix, own).all()
            assert np.isin(text, own).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_asking_leaves_kv_untouched_and_questions_do_not_meet(family: str) -> None:
    run, _ = prefilled(family, oracle.frames(family, 5), PrefillSettings(group_frames=2, rho=0.5))
    before = [part.clone() for part in (*run.kv.keys, *run.kv.values)]
    both = run.ask([ASKED, OTHER])[0]
    alone = [run.ask([one])[0][0] for one in (ASKED, OTHER)]
    for one, other in zip(both, alone, strict=True):
        assert one.answer.p_yes == pytest.approx(other.answer.p_yes, abs=1e-5)
    assert all((a == b).all() for a, b in zip(before, (*run.kv.keys, *run.kv.values), strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_is_what_its_question_computed_whole_would_write(family: str) -> None:
    run, _ = prefilled(family, oracle.frames(family, 5), PrefillSettings(group_frames=2, rho=0.5))
    if run.ask([Question("0", "0?")])[0][0].answer.p_yes <= 0.5:
        # Random weights say the same to every question: yes and no are exchanged.
        run.layout = dataclasses.replace(run.layout, yes=run.layout.no, no=run.layout.yes)
    asked = [Question(str(i), f"{i}?", describe=(0, 2, 6)[i % 3]) for i in range(9)]
    answers, spent = run.ask(asked, evidence=2)
    written = 0
    for question, one in zip(asked, (each.answer for each in answers), strict=True):
        assert (one.text is not None) == (question.describe > 0 and one.p_yes > 0.5)
        assert (one.text is None) == (one.text_flops == 0)
        if one.text is None:
            continue
        written += one.text_flops
        ids = [run.layout.yes]
        while len(ids) <= question.describe:
            with run.engine.in_turn():
                last, _ = run._ask([(*run.engine.suffix(question.text), *ids)], False, None)
                token = int(run.model.head(last)[0].argmax())
            if token in run.layout.stop:
                break
            ids.append(token)
        assert one.text == run.engine.text(ids)
    plain = run.ask([Question(one.id, one.text) for one in asked])[1]
    assert spent == plain + written > plain


@pytest.mark.parametrize("family", FAMILIES)
def test_evidence_is_the_attention_of_the_answer(family: str) -> None:
    shown = oracle.frames(family, 6)
    run, plans = prefilled(family, shown, PrefillSettings(group_frames=2, rho=0.6))
    _, state = reference(family, run, plans, shown)
    weight = torch.stack([w[:, -1] for w in state["weights"]]).mean((0, 1)).numpy()
    frames = [frame for frame in shown if len(frame.kept)]
    parts = [
        (p.before + part.start, p.before + part.stop) for p in plans for part in p.parts if part.block >= 0
    ]
    truth = {f.time_us: weight[a:b].sum() for f, (a, b) in zip(frames, parts, strict=True)}
    found = run.ask([ASKED], evidence=99)[0][0].evidence
    assert {each.time_us: each.share for each in found} == pytest.approx(truth, abs=1e-4)
    assert [each.share for each in found] == sorted((each.share for each in found), reverse=True)


@pytest.mark.slow
def test_nothing_is_read_back_from_the_device() -> None:
    """Tensors without data: any look at a value fails."""
    how = PrefillSettings(group_frames=2, rho=0.5)
    ghost = load_engine(checkpoint("qwen2_5_vl"))
    for part in (ghost.model.layers, ghost.model.embedding, ghost.model.norm, ghost.model.head):
        part.to("meta")
    rotary = ghost.model.rotary
    moved = dataclasses.replace(rotary, inv_freq=rotary.inv_freq.to("meta"), axis=rotary.axis.to("meta"))
    object.__setattr__(ghost.model, "rotary", moved)
    shown = oracle.frames("qwen2_5_vl", 4)
    planner = GroupPlanner(ghost.layout, how)
    for score in Score:
        run = GroupPrefill(ghost, dataclasses.replace(how, score=score), questions=[ASKED])
        for plan, group in zip(planner.plans("r", shown), grouped(shown, 2), strict=True):
            run.add(plan, group)
        assert run.kv.keys[0].device.type == "meta"
    with pytest.raises((NotImplementedError, RuntimeError)):
        run.ask([ASKED])


@pytest.mark.slow
def test_activations_fall_with_groups_and_kv_with_rho() -> None:
    shown = oracle.frames("internvl", 24, keep=1.1)
    peaks, kv = {}, {}
    for size in (24, 8, 2):
        for rho in (1.0, 0.5, 0.25):
            how = PrefillSettings(group_frames=size, rho=rho)
            planner = GroupPlanner(engine("internvl").layout, how)
            plans = planner.plans("r", shown)
            run = GroupPrefill(engine("internvl"), how, expected_rows=sum(p.rows for p in plans))
            with Meter() as meter:
                for plan, group in zip(plans, grouped(shown, size), strict=True):
                    run.add(plan, group)
            held = sum(p.untyped_storage().nbytes() for p in (*run.kv.keys, *run.kv.values, *run.kv.entries))
            peaks[size, rho] = meter.peak - held
            kv[size, rho] = run.kv.kv_bytes
    assert peaks[8, 1.0] < 0.55 * peaks[24, 1.0]
    assert peaks[2, 1.0] < 0.6 * peaks[8, 1.0]
    # The prefix stays whole.
    assert 0.5 * kv[8, 1.0] <= kv[8, 0.5] < 0.52 * kv[8, 1.0]
    assert 0.25 * kv[8, 1.0] <= kv[8, 0.25] < 0.28 * kv[8, 1.0]


def test_requests_that_do_not_fit() -> None:
    how = PrefillSettings(group_frames=2)
    shown = oracle.frames("internvl", 4, keep=1.1)
    planner = GroupPlanner(engine("internvl").layout, how)
    plans = planner.plans("r", shown)
    run = GroupPrefill(engine("internvl"), how)
    with pytest.raises(PlanError, match="no question can be answered"):
        run.ask([ASKED])
    with pytest.raises(PlanError, match="group 0 is next"):
        run.add(plans[1], shown[2:])
    with pytest.raises(PlanError, match="but 1 frames were given"):
        run.add(plans[0], shown[:1])
    with pytest.raises(EngineError, match="needs the questions"):
        GroupPrefill(engine("internvl"), PrefillSettings(score=Score.ATTENTION))
