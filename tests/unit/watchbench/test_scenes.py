"""Scenes: repeatable, truthful, the same at every size."""

from __future__ import annotations

import pytest
import torch

from watchbench import cameras, drawing, scenes
from watchbench.footage import Composite
from watchbench.questions import NAMES, answers

TIMES = torch.arange(20) * 0.5


def empty_scene() -> scenes.Scene:
    """One clean scene in which nothing happens, to be filled by hand."""
    scene = scenes.sample(1, 10, 0, grade=0.0)
    for table in (scene.people, scene.vehicles, scene.objects, scene.slow):
        table["there"][:] = False
    scene.tall[:], scene.horizon[:], scene.squash[:] = 0.4, 0.0, 1.0
    for table, name in (
        ("objects", "carried"),
        ("objects", "holds"),
        ("people", "sits"),
        ("vehicles", "twin"),
    ):
        getattr(scene, table)[name][:] = False
    scene.objects["until"][:] = scenes.FOREVER
    return scene


def test_a_seed_gives_the_same_pixels_and_another_seed_others() -> None:
    first, again, other = (drawing.render(scenes.sample(2, 10, seed), TIMES[:3], 56) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (2, 3, 56, 56, 3)
    assert 0 <= first.min() <= first.max() <= 1


@pytest.mark.slow
def test_boxes_hold_what_is_drawn() -> None:
    """Taking the people away changes pixels inside their boxes (grown by
    shadow and limbs), and nowhere else."""
    checked = 0
    for seed in range(6):
        scene = scenes.sample(4, 10, seed, grade=0.0)
        now = scenes.observe(scene, TIMES[10:11])
        scene.look["shake"][:] = 0
        full = drawing.render(scene, TIMES[10:11], 112)
        scene.people["there"][:] = False
        scene.objects["holds"][:] = False
        scene.objects["carried"][:] = False
        changed = (full - drawing.render(scene, TIMES[10:11], 112)).abs().amax(-1)[:, 0] > 0.05
        for i in range(4):
            shown = now.truth.person_share[i, 0] > 0
            allowed = torch.zeros(112, 112, dtype=torch.bool)
            for box in now.truth.person_box[i, 0][shown]:
                width, height = box[2] - box[0], box[3] - box[1]
                x0, x1 = float(box[0] - width) * 112, float(box[2] + width) * 112
                y0, y1 = float(box[1] - height * 0.5) * 112, float(box[3] + height * 0.5) * 112
                allowed[max(0, int(y0)) : max(0, int(y1) + 1), max(0, int(x0)) : max(0, int(x1) + 1)] = True
            falling = bool((now.truth.falling[i, 0] | now.truth.lying[i, 0]).any())
            assert falling or not bool((changed[i] & ~allowed).any())
            checked += int(shown.sum())
    assert checked > 10


def test_a_large_picture_shrinks_to_the_small_one() -> None:
    """What a camera sees at 448 pixels is what training sees at 112."""
    scene = scenes.sample(3, 10, 8, grade=0.0)
    for name in ("clock", "noise", "blur"):
        scene.look[name][:] = 0
    small = drawing.render(scene, TIMES[4:5], 112)[:, 0]
    large = drawing.render(scene, TIMES[4:5], 448)[:, 0].permute(0, 3, 1, 2)
    shrunk = torch.nn.functional.avg_pool2d(large, 4).permute(0, 2, 3, 1)
    assert (small - shrunk).abs().mean() < 0.03


def test_answers_grow_with_the_window() -> None:
    truth = scenes.observe(scenes.sample(64, 10, 3), TIMES).truth
    yes, known = answers(truth)
    assert yes.shape == known.shape == (64, 20, len(NAMES))
    for name in ("person", "lying", "vehicle", "many"):
        q = NAMES.index(name)
        assert bool((yes[:, 1:, q] >= yes[:, :-1, q]).all())
        share = yes[:, -1, q][known[:, -1, q]].float().mean()
        assert 0.05 < share < 0.95
    assert not known[:, 0].any()


def test_an_object_that_was_there_before_is_not_left_behind() -> None:
    scene = empty_scene()
    q = NAMES.index("left")
    scene.objects["there"][0, 0] = True
    scene.objects["from"][0, 0] = -scenes.FOREVER
    assert not bool(answers(scenes.observe(scene, TIMES).truth)[0][0, -1, q])
    scene.objects["from"][0, 0] = 4.0
    yes, known = answers(scenes.observe(scene, TIMES).truth)
    assert bool(yes[0, -1, q])
    assert bool(known[0, -1, q])
    assert not bool(yes[0, 7, q])
    assert not bool(known[0, 8, q])  # set down this very moment


def test_the_order_and_the_count_of_arrivals_are_known() -> None:
    scene = empty_scene()
    cameras.place(scene.people, 0, cameras.Actor(0.5, 0.8, enters=1, takes=1))
    cameras.place(scene.vehicles, 0, cameras.Actor(0.5, 0.8, enters=5, takes=1))
    yes, known = answers(scenes.observe(scene, TIMES).truth)
    order, count = NAMES.index("order"), NAMES.index("count")
    assert bool(yes[0, -1, order])
    assert bool(known[0, -1, order])
    assert not bool(known[0, 5, order])
    assert not bool(yes[0, -1, count])
    cameras.place(scene.vehicles, 1, cameras.Actor(0.2, 0.9, enters=6, takes=1))
    assert bool(answers(scenes.observe(scene, TIMES).truth)[0][0, -1, count])


def test_dense_labels_mark_the_cells_of_a_lying_person() -> None:
    scene = empty_scene()
    cameras.place(scene.people, 0, cameras.Actor(0.5, 0.6, falls=1.0))
    labels = scenes.dense_labels(scenes.observe(scene, TIMES).truth)[0]
    assert labels[0, :, 0].any()
    assert not labels[0, :, 1].any()
    assert labels[-1, :, 1].any()
    assert not labels[-1, :, 0].any()


def test_who_is_behind_a_van_is_not_in_view() -> None:
    scene = empty_scene()
    cameras.place(scene.people, 0, cameras.Actor(0.5, 0.6))
    free = scenes.observe(scene, TIMES[:1]).truth.person_share[0, 0, 0]
    cameras.place(scene.vehicles, 0, cameras.Actor(0.5, 0.7))
    scene.vehicles["van"][0, 0], scene.vehicles["above"][0, 0] = True, False
    truth = scenes.observe(scene, TIMES[:1]).truth
    assert free == 1
    assert truth.person_share[0, 0, 0] < 0.15
    assert truth.vehicle_share[0, 0, 0] > 0.9
    cameras.place(scene.people, 0, cameras.Actor(0.5, 0.8))  # before it
    assert scenes.observe(scene, TIMES[:1]).truth.person_share[0, 0, 0] == 1


def test_a_bag_nobody_can_see_is_not_asked_for() -> None:
    left = NAMES.index("left")
    scene = empty_scene()
    for name, value in {"there": True, "x": 0.5, "y": 0.8, "from": 2.0}.items():
        scene.objects[name][0, 0] = value
    answer, known = answers(scenes.observe(scene, TIMES).truth)
    assert answer[0, -1, left]
    assert known[0, -1, left]
    cameras.place(scene.vehicles, 0, cameras.Actor(0.5, 0.85))
    assert not answers(scenes.observe(scene, TIMES).truth)[1][0, -1, left]


def test_a_vehicle_that_comes_back_is_not_counted_twice() -> None:
    count = NAMES.index("count")
    scene = empty_scene()
    cameras.place(scene.vehicles, 0, cameras.Actor(0.5, 0.8, leaves=2.0, takes=1))
    cameras.place(scene.vehicles, 1, cameras.Actor(0.5, 0.8, enters=6.0, takes=1))
    answer, known = answers(scenes.observe(scene, TIMES).truth)
    assert answer[0, -1, count]
    assert known[0, -1, count]
    scene.vehicles["twin"][:] = True
    assert not answers(scenes.observe(scene, TIMES).truth)[1][0, -1, count]


@pytest.mark.long
def test_some_backdrops_are_invented_and_some_drift() -> None:
    scene = scenes.sample(40, 10, 2)
    drawn = drawing.background(scene, 56)
    ground = Composite(None, scene).ground(drawn, 4)
    replaced = (ground[:, 0] != drawn).flatten(1).any(1)
    drifts = (ground[:, 0] != ground[:, -1]).flatten(1).any(1)
    assert 2 <= int(replaced.sum()) <= 16
    assert 1 <= int(drifts.sum()) < int(replaced.sum())
    assert torch.equal(ground[~replaced], drawn[~replaced][:, None].expand(-1, 4, -1, -1, -1))
