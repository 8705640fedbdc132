"""Training of tower, projector and language model together."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from tests.unit.watchbench.groups import drawn, keep_group
from watchbench import cli, costs, model as vlm, scenes, training
from watchbench.clips import SHORT, chosen, part_of
from watchbench.finetune import WANTED, FinetunePlan, Finetuner, Group
from watchbench.questions import NAMES, answers

pytestmark = pytest.mark.long

PLAN = FinetunePlan(steps=3, warm=1, long=0.0, groups=1, prefixes=2, questions=2)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Group:
    """Two clips of eight frames, cut from a group as it is drawn."""
    whole = drawn(tmp_path_factory.mktemp("groups"))
    frames = torch.arange(8)
    return Group(whole.pixels[:, frames], whole.keep[:, frames], part_of(whole.truth, frames))


def _trainer(folder: Path, group: Group, initial: Path) -> Finetuner:
    trainer = Finetuner(PLAN, folder, initial)
    keep_group(group, trainer.store)
    return trainer


def _eye(trainer: Finetuner) -> torch.Tensor:
    part: Any = trainer.model.model.vision_tower
    return torch.cat([value.detach().flatten() for value in part.parameters()])


@pytest.mark.long
@torch.no_grad()
def test_patches_that_are_left_out_change_nothing_but_their_absence(group: Group) -> None:
    model = vlm.load(vlm.weights())
    pixels, keep = group.pixels[0].float() / 255, group.keep[0]
    assert 0 < int((~keep).sum()) < keep.numel()
    got = vlm.patches(model, pixels, keep)
    for frame in (1, 5):
        kept = keep[frame]
        grid = kept.view(1, 4, 4).repeat_interleave(2, 1).repeat_interleave(2, 2).flatten()
        alone = vlm.patches(model, pixels[frame : frame + 1], kept[None])
        torch.testing.assert_close(got[frame][grid], alone[0][grid], atol=1e-4, rtol=1e-4)
    whole = vlm.patches(model, pixels[:1], torch.ones(1, 16, dtype=torch.bool))
    torch.testing.assert_close(whole, vlm.patches(model, pixels[:1]), atol=1e-4, rtol=1e-4)


def test_harmless_scenes_show_lying_bodies_and_nobody_lies_on_the_ground() -> None:
    scene = scenes.harmless(40, 10.0, seed=5)
    now = scenes.observe(scene, torch.arange(20) * training.STEP_S)
    assert not now.truth.lying.any()
    down = now.drop[:, 0].amax(1)
    assert int((down > 0.8).sum()) >= 5  # in bed
    assert int(((down > 0.2) & (down <= 0.5)).sum()) >= 5  # bent down
    yes, known = answers(now.truth)
    lying = NAMES.index("lying")
    assert not yes[..., lying].any()
    assert known[:, 1:, lying].all()


def test_who_rolls_over_moves_within_the_bed_while_lying() -> None:
    scene = scenes.harmless(60, 10.0, seed=5)
    times = torch.arange(100) * 0.1
    now, people = scenes.observe(scene, times), scene.people
    rolls = people["roll"][:, 0] < scenes.FOREVER
    assert 5 <= int(rolls.sum()) < int(people["bed"][:, 0].sum())
    for row in rolls.nonzero().flatten().tolist():
        at, unit = float(people["roll"][row, 0]), float(now.unit[row, 0, 0])
        during = (times >= at) & (times <= at + 1)
        assert bool((now.drop[row, 0, during] > 0.8).all())
        path = now.foot_y[row, 0]
        moved = float((path[times > at + 1] - people["y"][row, 0]).abs().amax()) / unit
        assert 0.13 < moved < 0.3
        assert torch.equal(path[times < at], people["y"][row, :1].expand_as(path[times < at]))
    still = now.foot_y[~rolls, 0]
    assert torch.equal(still, still[:, :1].expand_as(still))
    assert not now.truth.lying.any()


def test_chosen_scenes_show_what_was_wanted() -> None:
    scene = chosen(WANTED[SHORT], 10.0, SHORT, seed=9)
    yes, known = answers(scenes.observe(scene, torch.arange(SHORT) * training.STEP_S).truth)
    for row, name in enumerate(WANTED[SHORT]):
        if name is not None:
            assert bool((yes & known)[row, -1, NAMES.index(name)]), name


def test_some_scenes_of_a_batch_are_those_scenes() -> None:
    whole, rows, times = scenes.sample(5, 10.0, seed=2), torch.tensor([3, 1]), torch.arange(4) * 2.0
    few, all_of_them = (scenes.observe(scene, times) for scene in (scenes.some_of(whole, rows), whole))
    assert torch.equal(few.truth.person_box, all_of_them.truth.person_box[rows])
    assert torch.equal(few.truth.object_share, all_of_them.truth.object_share[rows])


def test_a_mirror_changes_the_picture_and_no_answer(group: Group) -> None:
    other = group.mirrored()
    assert torch.equal(other.pixels, group.pixels.flip(4))
    for got, want in zip(answers(other.truth), answers(group.truth), strict=True):
        assert torch.equal(got, want)
    again = other.mirrored()
    assert torch.equal(again.keep, group.keep)
    torch.testing.assert_close(again.truth.person_box, group.truth.person_box)
    left, right = (scenes.dense_labels(one.truth)[..., 0].view(-1, 4, 4) for one in (group, other))
    assert torch.equal(left.flip(2), right)


@pytest.mark.slow
def test_a_stopped_run_continues_to_the_same_weights(tmp_path: Path, group: Group, small: Path) -> None:
    whole = _trainer(tmp_path / "whole" / "run", group, small)
    before = _eye(whole)
    seen: list[torch.Tensor] = []

    def watch() -> bool:
        seen.append(_eye(whole))
        return False

    assert whole.run(watch)
    assert torch.equal(seen[1], before)  # the heads alone learnt
    assert not torch.equal(seen[2], before)

    part = _trainer(tmp_path / "part" / "run", group, small)
    left = iter([False, False, True])
    assert not part.run(lambda: next(left))
    assert part.step == 2
    again = _trainer(tmp_path / "part" / "run", group, small)
    assert again.step == 2
    assert again.run()
    torch.testing.assert_close(_eye(again), _eye(whole))
    for name, value in whole.mean.items():
        torch.testing.assert_close(again.mean[name], value)


@pytest.mark.slow
def test_another_plan_is_refused(tmp_path: Path, group: Group, small: Path) -> None:
    _trainer(tmp_path / "run", group, small).save()
    with pytest.raises(ValueError, match="belongs to another plan"):
        Finetuner(FinetunePlan(**asdict(PLAN) | {"steps": 9}), tmp_path / "run", small)


@pytest.mark.parametrize(
    ("device", "told"), [("cuda:99", "'cuda:99' is not there"), ("gpu", "unknown device 'gpu'")]
)
def test_a_device_that_is_not_there_is_refused_by_name(device: str, told: str) -> None:
    with pytest.raises(typer.BadParameter, match=told):
        cli._device(device)


def test_minutes_on_an_accelerator_are_those_of_what_limits_it() -> None:
    cost = {"steps": 600, "flops": 1e12, "operations_a_step": 50_000, "groups": 4}
    assert costs.on_h100(cost)["h100_minutes"] == 10.0  # launches
    assert costs.on_h100(cost | {"flops": 4.02e15})["h100_minutes"] == 20.0  # arithmetic
