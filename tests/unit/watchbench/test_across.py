"""Windows composed of strides: what they show and what is told of them equal a film drawn in that order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from tests.unit.watchbench.test_far import TIMES
from watchbench import across, drawing, far, model as vlm, scenes
from watchbench.across import DRAWN, AcrossPlan, AcrossTrainer, StrideStore
from watchbench.clips import product_masks
from watchbench.training import STEP_S

ORDERS = ((1, 0, 2, 3, 10), (3, 2, 4, 0, 16), (7, 8, 9, 0, 3), (0, 8, 18, 9, 3), (2, 5, 1, 0, 15))


def _staged(other: bool, grade: float = 0.0) -> scenes.Scene:
    """One scene, with vehicles of either colour."""
    scene = across.staged(1, 5, other, grade)
    scene.look["clock"][:] = False
    return scene


def _in_order(scene: scenes.Scene, strides: tuple[int, ...]) -> scenes.Scene:
    """The same scene, staged in another order from the first."""
    out = scenes.some_of(scene, torch.tensor([0]))
    out.people["there"][:], out.vehicles["there"][:] = False, False
    people = vehicles = 0
    for place, stride in enumerate(strides):
        begin = place * far.STRIDE
        hidden = far.HIDDEN
        parts = {
            "person": [hidden],
            across.STAY: [range(far.STRIDE)],
            across.GAP: [range(hidden.start), range(hidden.stop, far.STRIDE)],
        }.get(DRAWN[stride], [])
        for part in parts:
            far.visit(out.people, 0, people, 0, range(begin + part.start, begin + part.stop))
            people += 1
        if DRAWN[stride] == "vehicle":
            out.vehicles["colour"][0, vehicles] = _staged(stride >= across.HALF).vehicles["colour"][0, 0]
            far.visit(out.vehicles, 0, vehicles, place)
            vehicles += 1
    colour = out.vehicles["colour"][0]
    out.vehicles["twin"][:] = bool((colour[0] == colour[1]).all())
    return out


@pytest.mark.parametrize("strides", ORDERS)
def test_a_composed_window_shows_what_is_drawn_in_that_order(strides: tuple[int, ...]) -> None:
    times = torch.arange(across.HALF * far.STRIDE) * STEP_S
    halves = []
    for other in (False, True):
        scene = _staged(other)
        drawn = drawing.render(scene, times, 56, scenes.observe(scene, times))[0]
        halves.append(drawn.unflatten(0, (across.HALF, far.STRIDE)))
    composed = torch.cat(halves)[list(strides)].flatten(0, 1)
    film = _in_order(_staged(False), strides)
    whole = drawing.render(film, TIMES, 56, scenes.observe(film, TIMES))[0]
    assert torch.equal((composed * 255).round(), (whole * 255).round())


@pytest.mark.parametrize("strides", ORDERS)
def test_what_is_told_of_a_window_is_what_its_truth_answers(strides: tuple[int, ...]) -> None:
    truth = scenes.observe(_in_order(_staged(False), strides), TIMES).truth
    told = across.told(strides, torch.randn(2, across.LOOKS))
    for which, kind in enumerate(far.KINDS):
        if told.known[-1, which]:
            assert bool(told.yes[-1, which]) == bool(far.answer(kind, truth)[0]), kind
    assert told.known[-1, 2] == (across.STAY in {DRAWN[stride] for stride in strides})


def test_scenes_are_shown_with_a_vehicle_that_comes_back_and_with_another_one() -> None:
    """Otherwise the answer could be learnt by heart for each scene, as it once was."""
    dice = random.Random(2)
    drawn = [across.composed(dice, 5) for _ in range(400)]
    vehicles = [[stride for stride in window if DRAWN[stride] == "vehicle"] for window in drawn]
    pairs = [tuple(stride // across.HALF for stride in pair) for pair in vehicles if len(pair) == 2]
    assert {pairs.count(pair) > len(pairs) / 6 for pair in ((0, 0), (0, 1), (1, 0), (1, 1))} == {True}


def test_windows_have_the_strides_that_were_asked_for() -> None:
    dice = random.Random(1)
    drawn = [across.composed(dice, size) for size in (3, 4, 5) for _ in range(200)]
    assert [len(window) for window in drawn] == [3] * 200 + [4] * 200 + [5] * 200
    assert {across.sort(window) for window in drawn} == {0, 1, 2}
    for window in drawn:
        shown = [stride for stride in window if DRAWN[stride] != "none"]
        assert len(shown) == len(set(shown))


@pytest.mark.long
def test_a_stored_window_has_the_tokens_of_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(across, "SCENES", 1)
    monkeypatch.setattr(across, "WINDOWS", 2)
    model = vlm.load(vlm.weights())
    store = StrideStore(model, tmp_path, 7)
    found, pixels = store.strides(0), store._pixels(7 * 10**7 + 8 * 10**6)
    for window in found.windows:
        shown = pixels[0, list(window.strides)].flatten(0, 1)
        keep = product_masks(shown, far.STRIDE)
        assert torch.equal(window.keep, keep)
        with torch.no_grad():
            pruned, whole = vlm.see(model, shown, keep), vlm.see(model, shown)
        torch.testing.assert_close(window.tokens.float(), pruned[keep], atol=0.02, rtol=0.02)
        dense = found.dense[0, list(window.strides)].flatten(0, 1).float()
        torch.testing.assert_close(dense, whole, atol=0.02, rtol=0.02)


@pytest.mark.long
def test_the_layers_alone_learn_and_make_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(across, "LOOKS", 2)  # directions, of which two scenes have no more
    plan = AcrossPlan(steps=2, rows=6, dense_rows=5, stock=1, sets=1)
    trainer = AcrossTrainer(plan, tmp_path / "run", vlm.weights())
    assert trainer.run()
    trainer.write(tmp_path / "out", {})
    new = vlm.load(tmp_path / "out").state_dict()
    old = vlm.load(vlm.weights()).state_dict()
    words = len(vlm.vocabulary())  # later rows belong to no word, and training draws them again
    for name, value in old.items():
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            assert torch.equal(new[name][:words], value[:words]), name
        elif "language_model.layers" not in name:
            assert torch.equal(new[name], value), name
        elif value.dim() > 1:
            assert not torch.equal(new[name], value), name
