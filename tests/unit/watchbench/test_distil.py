"""A second architecture from the first: what is copied, what the tower learns from, how windows are asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.unit.watchbench.groups import drawn, keep_group
from watchbench import cli, distil, model as vlm, qwen, sight
from watchbench.clips import SHORT
from watchbench.distil import Distiller, DistilPlan
from watchbench.finetune import Group

pytestmark = pytest.mark.long

PLAN = DistilPlan(steps=4, groups=1, stock=1)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Group:
    """One group as it is drawn for frames in pairs."""
    return drawn(tmp_path_factory.mktemp("groups"), qwen.PAIR)


def _trainer(folder: Path, group: Group) -> Distiller:
    trainer = Distiller(PLAN, folder, vlm.weights())
    keep_group(group, trainer.store)
    return trainer


@pytest.mark.slow
def test_the_language_model_is_copied_and_the_tower_alone_learns(tmp_path: Path, group: Group) -> None:
    assert group.keep.shape == (2, SHORT // qwen.PAIR, 16)
    trainer, old = _trainer(tmp_path / "run", group), vlm.load(vlm.weights())
    pixels, keep = group.pixels[0].float() / 255, group.keep[0]
    before = trainer.unexplained(pixels, keep).item()
    assert trainer.run(lambda: False)
    after = trainer.unexplained(pixels, keep).item()
    assert after < 0.9 * before
    vlm.save(trainer.averaged(), tmp_path / "out", trainer.card({}))
    new = vlm.load(tmp_path / "out")
    assert vlm.form_of(new) is vlm.QWEN
    assert vlm.form_in(tmp_path / "out") is vlm.QWEN
    words = len(vlm.vocabulary())  # rows behind them pad the table
    for name, value in old.model.language_model.state_dict().items():
        rows = slice(words if name == "embed_tokens.weight" else None)
        assert torch.equal(new.model.language_model.state_dict()[name][rows], value[rows]), name


@torch.no_grad()
def test_the_tower_is_taught_the_mean_of_a_pair(group: Group) -> None:
    teacher, pixels = vlm.load(vlm.weights()), group.pixels[0, :4].float() / 255
    tokens = vlm.see(teacher, pixels)
    torch.testing.assert_close(distil.taught(teacher, pixels, None), (tokens[::2] + tokens[1::2]) / 2)
    keep = torch.zeros(2, 16, dtype=torch.bool)
    keep[0], keep[1, 3] = True, True
    alone = vlm.see(teacher, pixels, keep.repeat_interleave(2, 0))
    torch.testing.assert_close(distil.taught(teacher, pixels, keep)[1, 3], alone[2:, 3].mean(0))


@torch.no_grad()
def test_dropped_groups_change_nothing_but_their_absence_in_a_windowed_tower() -> None:
    """A pair with all of its first row of quarters dropped is encoded as if that were not there: other values
    of the dropped pixels change no kept token."""
    torch.manual_seed(3)
    tower = vlm.build(form=vlm.QWEN).model.visual
    pairs = torch.rand(1, qwen.PAIR, 3, vlm.SIZE, vlm.SIZE)
    other = pairs.clone()
    other[..., : vlm.SIZE // 4, :] = 0
    keep = torch.ones(1, 16, dtype=torch.bool)
    keep[0, :4] = False
    got, want = qwen.see(tower, pairs, keep), qwen.see(tower, other, keep)
    torch.testing.assert_close(got[keep], want[keep])
    assert not torch.allclose(qwen.see(tower, pairs)[keep], qwen.see(tower, other)[keep])


def test_clips_are_asked_after_whole_pairs() -> None:
    assert all(end % 2 == 1 for end in sight.moments(20, 20, qwen.PAIR))
    assert sight.moments(20, 20) == tuple(
        round(share * 20) for share in sight.ASKED_AT if round(share * 20) < 20
    )
    assert all(end < 9 for end in sight.moments(20, 9, qwen.PAIR))


def test_snippets_are_refused_where_frames_have_no_numbers() -> None:
    model = vlm.build(form=vlm.QWEN)
    tokens = torch.zeros(1, 4, 16, vlm.shape_of(model).text)
    with pytest.raises(ValueError, match="reads no snippets"):
        vlm.answer(model, tokens, [vlm.Asked("Is a person in view?", 3)], parts=((2, 1), (2, 9)))


def test_weights_of_that_architecture_are_refused_to_begin_with(tmp_path: Path) -> None:
    vlm.save(vlm.build(form=vlm.QWEN), tmp_path / "qwen")
    asked = ["distil", "--begin", str(tmp_path / "qwen"), "-o", str(tmp_path / "out")]
    told = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, asked)
    assert told.exit_code == 2
    assert "is of qwen2_5_vl, not of internvl" in told.output
