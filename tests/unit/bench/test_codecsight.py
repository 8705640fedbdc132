"""How CodecSight's bench counts, what its masks do, and its page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bench import pages
from bench.answered import Answered, Cut
from bench.codecsight.paper import beside_paper
from bench.codecsight.policies import (
    WAYS,
    WHOLE,
    LumaShare,
    RandomTokens,
    TurnedMasks,
    corner_mask,
    kept_behind,
    kept_behind_anchors,
    masks_of,
    reused,
)
from bench.codecsight.rules import compared
from bench.codecsight.scores import Answers, Counts, by_event, by_video, by_window, expired, interval_of, mean
from bench.codecsight.streams import (
    CANDIDATES,
    FEW,
    FIRST,
    GRADE,
    WISHES,
    Camera,
    Outcome,
    Workplace,
    mean_length,
    policy_answers,
    tower_key,
)
from bench.codecsight.sweeps import EVERY_TOKEN, GOPS, PAPER
from bench.codecsight.table import (
    BY_MOTION,
    INTERVALS,
    SATURATED,
    FullSize,
    at_full_size,
    camera_rows,
    default_less,
    families,
    thirds,
)
from bench.pages import page
from bench.record import Record
from bench.results import Results
from lookout.models.engines.transformers import forward
from lookout.models.windows import PRESETS
from lookout.pruning import EncodedGroups, PatchGrid, PrunePolicy, Sample, drop_tokens, prune_block
from tests.unit.models.engines.scenes import block
from watchbench import scenes
from watchbench.clips import chosen
from watchbench.questions import BY_NAME, NAMES, QUESTIONS, answers as true_answers
from watchbench.training import STEP_S


def answers(said: str, true: str) -> Answers:
    """Windows as letters: y(es), n(o); ? where the truth is not known."""
    told = [np.array([letter == "y" for letter in text]) for text in (said, true)]
    return Answers(told[0], told[1], np.array([letter != "?" for letter in true]))


def test_a_video_is_positive_where_two_consecutive_windows_are() -> None:
    assert by_video(answers("ynyn", "yyyy")) == Counts(miss=1)
    assert by_video(answers("nyyn", "yyyy")) == Counts(hit=1)
    assert by_video(answers("nyyn", "nnnn")) == Counts(false=1)
    assert by_video(answers("ynyn", "nnnn")) == Counts(quiet=1)
    assert by_video(answers("yy", "??")) == Counts()


def test_an_event_is_found_by_one_window_and_false_only_where_it_is_known() -> None:
    assert by_event(answers("nynnnn", "yynnyy")) == Counts(hit=1, miss=1)
    assert by_event(answers("ynnynn", "nnn?nn")) == Counts(false=1)
    assert by_event(answers("yyyn", "nyyn")) == Counts(hit=1)  # a run that reaches beyond the event


def test_windows_without_a_known_truth_count_nowhere() -> None:
    counts = by_window(answers("yynn", "yn?y"))
    assert counts == Counts(hit=1, miss=1, false=1)
    assert counts.f1 == pytest.approx(0.5)
    assert (Counts().f1, Counts().precision, Counts().recall) == (None, None, None)


def test_an_event_that_has_just_left_must_be_denied() -> None:
    assert expired(answers("yyyn", "ynny")) == Counts(false=1)
    assert expired(answers("yn", "y?")) == Counts()


def test_an_interval_holds_the_figure() -> None:
    cameras = [[Counts(hit=hit, miss=2)] for hit in range(8)]
    low, high = interval_of(cameras, lambda counts: mean([counts[0].f1])) or (0.0, 0.0)
    assert low < Counts(hit=28, miss=16).f1 < high  # type: ignore[operator]


def test_turned_masks_keep_as_many_groups_elsewhere() -> None:
    grid = PatchGrid.merged(8, 8, 14, 2)
    still = np.full((112, 112, 3), 100, np.uint8)
    moved = still.copy()
    moved[:28, :28] = 250
    samples = [Sample(still), Sample(moved)]
    right, wrong = (prune_block(samples, grid, rule)[0] for rule in (PrunePolicy(), TurnedMasks()))
    assert [mask.kept for mask in wrong] == [mask.kept for mask in right]
    assert wrong[0].keep.all()
    assert 0 < right[1].kept < 16
    assert np.array_equal(wrong[1].keep, right[1].keep[::-1, ::-1])
    assert not np.array_equal(wrong[1].keep, right[1].keep)


@pytest.mark.parametrize("gop", GOPS)
def test_windows_of_figure_18_are_refreshed_at_keyframes_alone(gop: int) -> None:
    """An anchor for every keyframe and no other, whatever the length of a group of pictures."""
    grid = PatchGrid.merged(8, 8, 14, 2)
    still = np.full((112, 112, 3), 100, np.uint8)
    samples = [Sample(still, intra=number % gop == 0) for number in range(16)]
    for policy in (EVERY_TOKEN, PAPER):
        masks, _ = prune_block(samples, grid, policy)
        assert [mask.anchor for mask in masks] == [number % gop == 0 for number in range(16)]
    assert all(mask.keep.all() for mask in prune_block(samples, grid, EVERY_TOKEN)[0])


def test_reused_tokens_are_those_last_encoded_at_their_place() -> None:
    pruned = [block("internvl", "cam/0", index, frames=3, keep=0.4) for index in range(2)]
    first = pruned[0].frames[0]
    whole = replace(
        first, keep=np.ones_like(first.keep), tokens=torch.rand(first.keep.size, first.tokens.shape[1])
    )
    pruned[0] = replace(pruned[0], frames=(whole, *pruned[0].frames[1:]))
    filled = reused(pruned)
    last = whole.tokens.clone()
    for before, after in zip(pruned, filled, strict=True):
        for one, other in zip(before.frames, after.frames, strict=True):
            last[one.kept] = one.tokens
            assert other.keep.all()
            assert torch.equal(other.tokens, last)
    assert 0 < kept_behind_anchors(pruned) < 1
    with pytest.raises(ValueError, match="begins with a frame that is not whole"):
        reused([replace(pruned[0], frames=pruned[0].frames[1:])])


def test_masks_behind_the_tower_choose_among_the_tokens_of_whole_frames() -> None:
    pruned = [block("internvl", "cam/0", index, frames=3, keep=0.4) for index in range(2)]
    whole = [block("internvl", "cam/0", index, frames=3, keep=1.0) for index in range(2)]
    chosen = kept_behind(whole, pruned)
    for own, other, full in zip(chosen, pruned, whole, strict=True):
        assert own.tokens == other.tokens < full.tokens
        for one, kept, all_of_it in zip(own.frames, other.frames, full.frames, strict=True):
            assert np.array_equal(one.keep, kept.keep)
            assert torch.equal(one.tokens, all_of_it.tokens[torch.from_numpy(kept.kept)])


def test_random_tokens_are_as_many_as_asked_for_and_anchors_stay_whole() -> None:
    whole = np.ones((4, 4), np.bool_)
    frames = [EncodedGroups(i == 0, whole, np.zeros((16, 2), np.float32)) for i in range(5)]
    masks = drop_tokens(RandomTokens(0.25), frames)
    assert masks[0].all()
    assert sum(int(mask.sum()) for mask in masks[1:]) == 16
    assert not any(mask.any() for mask in drop_tokens(RandomTokens(0.0), frames)[1:])


def test_a_share_of_luma_keeps_what_changed_most_in_the_block() -> None:
    grid = PatchGrid.merged(8, 8, 14, 2)
    still = np.full((112, 112, 3), 100, np.uint8)
    little, much = still.copy(), still.copy()
    little[:28, :28], much[-28:, :28] = 120, 250
    samples = [Sample(picture) for picture in (still, little, much)]
    for count, kept in ((1, [[], [(3, 0)]]), (3, [[(0, 0)], [(0, 0), (3, 0)]])):
        masks, _ = prune_block(samples, grid, LumaShare(count / 32))
        assert masks[0].keep.all()
        assert [[tuple(place) for place in np.argwhere(mask.keep).tolist()] for mask in masks[1:]] == kept


def test_rules_of_rows_are_paired_with_the_default_by_camera() -> None:
    def outcome(p: float, flops: float) -> Outcome:
        return Outcome(Answered(np.full((2, 4), p), np.full(2, flops), np.arange(2)), 0.1)

    cameras = [
        {
            "prune only": outcome(0.5, 9.0),
            "default": outcome(0.5 + by, 2.0),
            "front 8": outcome(0.55 + by, 3.0),
            "vlcache 8": outcome(0.6 + by, 3.0),
        }
        for by in (0.0, 0.1)
    ]
    found = compared(cameras)
    assert set(found) == {"default", "front 8", "vlcache 8"}
    assert found["vlcache 8"]["front less it"] == -0.05
    assert "front less it" not in found["default"]
    assert found["vlcache 8"]["FLOPs over the default's"] == 1.5
    assert found["vlcache 8"]["default less it"] == -0.1
    assert found["vlcache 8"]["default less it 95 %"] == [-0.1, -0.1]
    assert found["default"]["dp"] == 0.05


def test_the_corner_mask_is_wrong_for_scattered_rows_alone_and_is_taken_back() -> None:
    usual = forward.chunks_of
    rows = torch.tensor([1, 4])
    with corner_mask():
        (chunk,) = forward.chunks_of(rows, rows.tolist(), 5, torch.float32)
        last = torch.tensor([3, 4])
        (contiguous,) = forward.chunks_of(last, last.tolist(), 5, torch.float32)
    assert forward.chunks_of is usual
    assert (chunk.mask == 0).tolist() == [[True, True, True, True, False], [True] * 5]
    exact = usual(last, last.tolist(), 5, torch.float32, unbroken=False)
    assert torch.equal(contiguous.mask, exact[0].mask)  # type: ignore[arg-type]


def test_a_family_that_a_wrong_mask_does_not_hurt_is_saturated() -> None:
    yes, wrong = answers("yy", "yy"), answers("yn", "yy")
    names = [question.family for question in QUESTIONS]
    right = [[yes for _ in QUESTIONS]]
    hurt = [[wrong if name == "order" else yes for name in names]]
    told = families({"prune only": right, "wrong mask": hurt})
    assert (told["order"]["gate"], told["dwell"]["gate"], told["slow"]["gate"]) == (
        "open",
        "saturated",
        "not learnt",
    )
    unknown = [[yes if name != "slow" else answers("yy", "??") for name in names]]
    assert families({"prune only": unknown, "wrong mask": unknown})["slow"]["gate"] == "no case"
    assert told["order"]["prune only"] - told["order"]["wrong mask"] >= SATURATED


def test_the_page_says_first_what_is_better_than_the_default() -> None:
    f1 = {"full": 0.9, "prune only": 0.8, "refresh only": 0.7, "codecsight": 0.6, "default": 0.75}
    f1 |= {"refresh, corner mask": 0.2, "codecsight, whole": 0.65}
    shares = {
        f"{name}, {level}": 0.8 for name in ("default", "codecsight") for level in ("walk", "night", "fall")
    }
    scores = ("video F1", "event F1", "window F1", "product", "contextual")
    rows = {
        name: dict.fromkeys(scores, value) | {"dp": 0.01 * value, "FLOPs of full": 0.2}
        for name, value in f1.items()
    }
    third = {"default: dropped": 0.5, "full: F1": 0.9, "default: F1": 0.8}
    found = {
        "policies": rows,
        "figure 14": {"low": third, "high": third},
        "figure 18": {
            "every token, GOP 4": {"F1": 0.7, "FLOPs": 2.0},
            "every token, GOP 16": {"F1": 0.8, "FLOPs": 1.0},
        },
        "figure 19": {"pruning": 0.02, "together": 0.03},
    }
    line = {"f1": f1, "flops_saved": {"1 questions": shares}, "overhead": 0.03}
    told = beside_paper(found, line)
    assert "GOP 4: F1 0.7, FLOPs 2.0" in told["18, GOP"]["ours"]
    figures = line | {"tables": {"beside the paper": told} | found}
    text = page("codecsight", Record("command", "device", "commit", "2026-01-01", 0.0, figures))
    top, _, rest = text.partition("| figure | value |")
    assert "- video F1 (default 0.75): full (0.9 at 20% of the FLOPs), prune only (0.8" in top
    assert "codecsight (0.006)" in top
    assert "## beside the paper" in rest


def test_the_default_is_paired_with_every_policy_by_camera() -> None:
    right, wrong = answers("nyyn", "nyyn"), answers("nnnn", "nyyn")
    told = {"full": right, "prune only": wrong, "default": wrong}
    judged = {name: [[one] * len(QUESTIONS)] * 3 for name, one in told.items()}

    def outcome(p: float, flops: float) -> Outcome:
        return Outcome(Answered(np.full((2, 4), p), np.full(2, flops), np.arange(2)), 0.1)

    camera = {"full": outcome(0.9, 80.0), "prune only": outcome(0.5, 20.0), "default": outcome(0.5, 10.0)}
    found = default_less(judged, [camera] * 3, rounds=20)
    assert "default" not in found
    assert found["prune only"]["video F1"] == 0.0
    assert found["prune only"]["dp 95 %"] == [0.0, 0.0]
    assert found["prune only"]["FLOPs over the default's"] == 2.0
    assert found["full"]["video F1"] == found["full"]["product"] == -1.0
    assert found["full"]["contextual 95 %"] == [-1.0, -1.0]


def test_thirds_are_of_cameras_in_the_order_of_their_vectors() -> None:
    answered = Answered(np.full((2, 4), 0.5), np.full(2, 1.0), np.arange(2))
    kept = (0.9, 0.1, 0.5)  # in another order than the vectors
    cameras = [dict.fromkeys(("full", "codecsight", "default"), Outcome(answered, part)) for part in kept]
    right = [[answers("yy", "yy")] * len(QUESTIONS)] * 3
    judged = dict.fromkeys(("full", "codecsight", "default"), right)
    found = thirds(camera_rows(cameras, judged, motion=(0.2, 3.0, 0.1)))
    assert [row["vectors, px"] for row in found.values()] == [[0.1, 0.1], [0.2, 0.2], [3.0, 3.0]]
    assert [row["default: dropped"] for row in found.values()] == [0.5, 0.1, 0.9]


def test_a_figure_is_answered_by_the_policies_that_it_needs(tmp_path: Path) -> None:
    """Nothing else is computed: there is neither model nor time."""
    results = Results(tmp_path / "answers.jsonl")
    shown = Camera("gate", tmp_path / "gate.mp4", None)  # type: ignore[arg-type]
    for name in BY_MOTION:
        results.add(f"gate, {name}", {"p": [[0.5]], "flops": [1.0], "since": [0], "kept": 0.5})
        results.add(tower_key(shown, WAYS[name][0]), 0.5)
    place = Workplace(None, None, results, tmp_path, Cut(16, 100, 1), 80.5, until=0.0)  # type: ignore[arg-type]
    found = policy_answers(shown, place, BY_MOTION)
    assert found is not None
    assert tuple(found) == BY_MOTION
    assert policy_answers(shown, place) is None


def test_the_mean_length_of_vectors_leaves_out_what_is_new() -> None:
    grid = np.array([[0.0, 2.0], [np.inf, 1.0]], np.float16)
    assert mean_length([None, grid]) == 1.0
    assert mean_length([np.zeros((1, 1), np.float16)]) == 0.0


def test_a_codec_without_vectors_has_no_length_of_motion() -> None:
    """It is not the stillest camera."""
    assert mean_length([None]) is None
    assert mean_length([np.full((2, 2), np.inf, np.float16)]) is None


def test_refresh_alone_and_the_paper_s_masks_alone_are_the_paper_s() -> None:
    kind, setting = WAYS["refresh only"]
    assert (masks_of(kind, 1.0), setting) == (EVERY_TOKEN, WAYS["codecsight"][1])
    assert WAYS["codecsight, whole"] == (WAYS["codecsight"][0], WHOLE)


def test_tables_that_were_not_asked_for_have_no_row_beside_the_paper() -> None:
    stride = {"20 %": {"default: F1": 0.9, "full: F1": 0.95, "cameras": 6, "FLOPs": 1.0}}
    assert list(beside_paper({"figure 16": stride}, {"f1": {}})) == ["16, stride"]


def test_flops_saved_grow_with_the_interval_between_key_windows_and_count_its_audit() -> None:
    cost = FullSize(full=100.0, language=5.0, whole=20.0, vision=3.0)
    assert cost.saved(10) == pytest.approx(1 - (5.0 + 2.0 + 3.0) / 100)
    assert cost.saved(5) < cost.saved(10) < cost.saved(20)


def test_questions_and_a_tower_that_encodes_everything_are_counted() -> None:
    keep, settings = [0.1], PRESETS["codecsight"]
    alone, more = (at_full_size(keep, settings, count) for count in (1, 5))
    behind = at_full_size(keep, settings, encoded=[1.0])
    assert alone.language < more.language < more.full
    assert alone.vision < behind.vision
    assert alone.language == behind.language
    assert 0 < alone.saved(INTERVALS[0]) < alone.saved() < alone.saved(INTERVALS[2]) < 1


@pytest.mark.parametrize("number", range(len(WISHES)))
def test_every_family_has_a_camera_that_shows_it(number: int) -> None:
    frames, wish = round(80.5 / STEP_S), WISHES[number]
    shown = chosen((wish,), 80.5, frames, FIRST + number, GRADE, CANDIDATES.get(wish, FEW))
    yes, known = true_answers(scenes.observe(shown, torch.arange(frames) * STEP_S).truth)
    assert bool((yes & known)[0, -1, NAMES.index(wish)])


def test_wishes_are_of_every_family_but_those_that_most_cameras_show() -> None:
    shown = {BY_NAME[wish].family for wish in WISHES}
    assert {question.family for question in QUESTIONS} - shown == {"seen", "now"}


def test_figure_14_can_be_drawn_again_from_its_cameras() -> None:
    figures = pages.results()["codecsight-motion"].figures
    cameras = list(figures[pages.BY_CAMERA].values())
    assert figures["cameras"] == len(cameras) >= 12
    assert thirds(cameras) == figures["tables"]["figure 14"]
