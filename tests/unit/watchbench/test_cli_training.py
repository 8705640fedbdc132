"""The commands that train: what they take is printed by `--estimate`, what they begin with is said by name,
and a device that is not there is refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from watchbench import cli, long, model as vlm, training
from watchbench.costs import counted, summed
from watchbench.long import FirstClips, Lessons, LongPlan, LongTrainer

PLAN = LongPlan(steps=4, rows=80, prefixes=2, questions=2, short=0.5, drop=0.0)
RUNNER = CliRunner(env={"LOOKOUT_FOOTAGE": "/nowhere", "COLUMNS": "200"})


@pytest.fixture(scope="module")
def drawn(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of progress beside which the first clips are drawn."""
    folder = tmp_path_factory.mktemp("train")
    store = LongTrainer(PLAN, folder / "first", small).store
    store.clip(0)
    store.shorts(0)
    return folder


def _trainer(folder: Path, initial: Path) -> LongTrainer:
    trainer = LongTrainer(PLAN, folder, initial)
    trainer.lessons = Lessons(PLAN, FirstClips(trainer.store))
    return trainer


def _weights(model: Any, part: str) -> torch.Tensor:
    return torch.cat([value.flatten() for value in getattr(model.model, part).state_dict().values()])


@pytest.mark.parametrize("command", ["train", "lengthen", "finetune", "distil", "real"])
def test_a_device_that_is_not_there_is_refused_by_every_command(command: str, tmp_path: Path) -> None:
    output = ["--output", str(tmp_path / "out")]
    needed = {"distil": output, "real": [*output, "--clips", str(tmp_path)]}.get(command, [])
    told = RUNNER.invoke(cli.app, [command, "--device", "cuda:99", "--folder", str(tmp_path), *needed])
    assert told.exit_code == 2
    assert "'cuda:99' is not there" in told.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "lengthen", "finetune"])
def test_a_kind_that_is_unknown_is_refused_by_every_command(command: str) -> None:
    told = RUNNER.invoke(cli.app, [command, "--name", "brave"])
    assert told.exit_code == 2
    assert "unknown kind 'brave': tolerant or dense" in told.output


def test_weights_to_begin_with_that_are_not_there_are_named() -> None:
    told = RUNNER.invoke(cli.app, ["lengthen", "--name", "dense", "--begin", "nobody"])
    assert told.exit_code == 2
    assert "no weights called 'nobody'" in told.output
    assert "--begin" in told.output


def test_dense_weights_begin_with_the_tolerant_ones_and_drop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[LongPlan, Path, Path]] = []

    def trainer(plan: LongPlan, folder: Path, initial: Path, *_: object) -> None:
        given.append((plan, folder, initial))
        raise ValueError("begun")

    monkeypatch.setattr(long, "LongTrainer", trainer)
    asked = ["lengthen", "--name", "dense", "--begin", "tolerant", "--folder", str(tmp_path)]
    assert "begun" in RUNNER.invoke(cli.app, asked).output
    assert "begun" in RUNNER.invoke(cli.app, ["lengthen", "--begin", str(vlm.weights())]).output
    (dense, folder, initial), (tolerant, _, other) = given
    assert (dense.drop, folder.name, initial) == (0.0, "dense-long-51", vlm.weights())
    assert (tolerant.drop, other) == (LongPlan().drop, vlm.weights())


def test_what_parts_of_a_plan_take_is_summed() -> None:
    square = torch.ones(4, 4, requires_grad=True)
    one = counted(lambda: torch.sum(square @ square))
    assert one[0] == 3 * 2 * 4**3  # forward, and backward for either side
    assert one[1] > 3
    assert summed(4, [(3, (10, 2)), (1, (2, 6))]) == {"steps": 4, "flops": 32, "operations_a_step": 3}


@pytest.mark.long
def test_an_estimate_is_what_the_steps_take_and_teaches_nothing(drawn: Path, small: Path) -> None:
    trainer = _trainer(drawn / "estimate", small)
    before = _weights(trainer.model, "language_model")
    told = trainer.estimate()
    costs = [trainer.cost(step) for step in range(PLAN.steps)]
    assert len({trainer.lessons.kind(step) for step in range(PLAN.steps)}) > 1
    assert told["flops"] == pytest.approx(sum(flops for flops, _ in costs), rel=0.02)
    assert (told["steps"], told["clips"], told["groups"]) == (4, 17, 18)
    assert torch.equal(_weights(trainer.model, "language_model"), before)
    assert not (drawn / "estimate").exists()


@pytest.mark.long
def test_a_run_that_begins_with_other_weights_keeps_their_eye(
    drawn: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, out = _trainer(drawn / "run", small), tmp_path / "dense"
    cli._learn(trainer, "dense", small, estimate=False, output=out, install=False)
    assert str(out) in capsys.readouterr().out
    before, after = vlm.load(small), vlm.load(out)
    for part, same in (("vision_tower", True), ("multi_modal_projector", True), ("language_model", False)):
        assert torch.equal(_weights(before, part), _weights(after, part)) is same
    first, card = (json.loads((folder / "watchbench.json").read_text()) for folder in (small, out))
    assert (card["long_2"]["steps"], card["long_2"]["plan"]["drop"]) == (4, 0.0)
    assert {name: card[name] for name in first} == first  # the run before keeps its entry


@pytest.mark.long
def test_the_first_stages_say_what_they_take(tmp_path: Path) -> None:
    plan = training.Plan(
        steps1=2, steps2=4, batch1=4, batch2=1, frames=4, prefixes=2, questions=2, frozen=0.5
    )
    trainer = training.Trainer(plan, tmp_path / "run")
    before = _weights(trainer.model, "vision_tower")
    told = trainer.estimate()
    longer = training.Trainer(training.Plan(**asdict(plan) | {"steps1": 4}), tmp_path / "run").estimate()
    assert told["steps"] == 6
    assert told["flops"] > 0
    assert longer["flops"] > told["flops"]
    assert torch.equal(_weights(trainer.model, "vision_tower"), before)
    assert not (tmp_path / "run").exists()
