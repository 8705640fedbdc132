"""Long windows and history: what is asked of the model is what the product computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from watchbench import model as vlm, scenes, training
from watchbench.clips import STRIDES, ClipStore, Wanted, part_of, product_masks
from watchbench.long import Lessons, LongPlan
from watchbench.questions import BY_NAME, NAMES, answers

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def model() -> object:
    return vlm.load(vlm.weights())


@pytest.fixture(scope="module")
def store(model: object, tmp_path_factory: pytest.TempPathFactory) -> ClipStore:
    return ClipStore(model, tmp_path_factory.mktemp("clips"), seed=3)


def _asked(end: int) -> list[vlm.Asked]:
    return [vlm.Asked(BY_NAME[name].text, end) for name in ("person", "vehicle", "order")]


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("pruned", [False, True])
def test_one_part_is_a_plain_window(model: object, store: ClipStore, pruned: bool) -> None:
    clip = store.clip(0)
    tokens = (clip.pruned[0][0] if pruned else clip.dense)[None, :8].float()
    keep = clip.pruned[0][1][None, :8] if pruned else None
    plain = vlm.answer(model, tokens, _asked(7), keep, 5)
    parts = vlm.answer(model, tokens, _asked(7), keep, parts=((8, 5),))
    torch.testing.assert_close(parts.answers, plain.answers, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@torch.no_grad()
def test_a_window_cannot_see_snippets_and_questions_can(model: object, store: ClipStore) -> None:
    tokens = store.clip(0).dense[None, :8].float()
    other = tokens.clone()
    other[:, :4] = torch.randn_like(other[:, :4])
    asked, parts = _asked(7), ((4, 100), (4, 1))
    one, two = (vlm.answer(model, t, asked, None, layers=(2, 4), parts=parts) for t in (tokens, other))
    for before, after in zip(one.frames, two.frames, strict=True):
        torch.testing.assert_close(before[:, 4:], after[:, 4:])
        assert (before[:, :4] - after[:, :4]).abs().max() > 1e-3
    assert (one.answers - two.answers).abs().max() > 1e-3


def test_the_truth_of_some_frames_is_that_of_a_scene_observed_at_their_times() -> None:
    scene = scenes.sample(6, 20.0, seed=4)
    times = torch.arange(40) * training.STEP_S
    window = torch.arange(8, 28)
    cut = part_of(scenes.observe(scene, times).truth, window)
    whole = scenes.observe(scene, times[window]).truth
    for got, want in zip(answers(cut), answers(whole), strict=True):
        assert torch.equal(got, want)


@pytest.mark.long
def test_clips_and_lessons_are_made_from_their_number(
    model: object, store: ClipStore, tmp_path: Path
) -> None:
    again = ClipStore(model, tmp_path, seed=3)
    assert torch.equal(again.clip(1).dense, store.clip(1).dense)
    assert torch.equal(again.clip(1).dense, again.clip(1).dense)  # drawn, then read
    plan = LongPlan(seed=3, rows=40, drop=1.0)
    left, right = Lessons(plan, store).lesson(1), Lessons(plan, again).lesson(1)
    assert torch.equal(left.tokens, right.tokens)
    assert left.keep is not None
    assert right.keep is not None
    assert torch.equal(left.keep, right.keep)
    assert left.asked == right.asked


@pytest.mark.slow
def test_wanted_clips_show_what_was_wanted(model: object, store: ClipStore, tmp_path: Path) -> None:
    wishes = ("many", "left", None)
    wanted = ClipStore(model, tmp_path, seed=3, wanted=Wanted(shorts=wishes))
    yes, known = answers(wanted.shorts(0).truth)
    assert len(yes) == len(wishes)
    for row, name in enumerate(wishes[:2]):
        column = NAMES.index(str(name))
        assert (yes & known)[row, -1, column]
    assert wanted.folder.name != ClipStore(model, tmp_path, seed=3).folder.name


def test_a_pruned_window_begins_with_a_whole_frame(store: ClipStore) -> None:
    clip = store.clip(0)
    for stride, (_, keep) in zip(STRIDES, clip.pruned, strict=True):
        assert keep[::stride].all()
        assert not keep.all()


def test_masks_are_the_products(store: ClipStore) -> None:
    still = torch.full((8, 3, vlm.SIZE, vlm.SIZE), 0.5)
    still[5:, :, 4:24, 4:24] = 0.9  # one token's cell changes, and stays
    keep = product_masks(still, 4)
    assert keep[0].all()
    assert keep[4].all()
    assert not keep[1:4].any()
    assert keep[5].nonzero().flatten().tolist() == [0]
    assert not keep[6:].any()


def test_history_asks_what_frames_of_any_moment_can_answer() -> None:
    from watchbench.long import HISTORY

    assert set(HISTORY) <= set(NAMES)
    assert not {"left", "novel", "static", "dwell", "slow", "return"} & set(HISTORY)
