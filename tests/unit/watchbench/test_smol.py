"""A language model of another make after the eye: what begins as nothing, what learns, what the fleet reads.

A tiny Llama with random weights stands for SmolLM2, whose package is not installed here.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.unit.watchbench.test_fleet_path import COUNT, STRIDE, fleet_answers
from watchbench import cli, far, films, model as vlm, smol
from watchbench.clips import product_masks
from watchbench.questions import PRODUCT
from watchbench.smol import Adapter, Language, SmolPlan, SmolTrainer
from watchbench.training import windows

pytestmark = pytest.mark.long

PLAN = SmolPlan(
    steps=4, rows=80, align=2, clips=4, stock=4, chosen=False, rank=4, prefixes=1, questions=2, history=0.0,
    far=0.0, films=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def language() -> Language:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    tokenizer = vlm.tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value), alpha=0.05)
    return Language(model.eval(), tokenizer, smol.words_of(tokenizer))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where trainers of this file keep what the projector reads: drawn once."""
    return tmp_path_factory.mktemp("clips")


def _pictures() -> tuple[torch.Tensor, torch.Tensor]:
    pixels, _ = windows(1, COUNT, 31)
    whole = (pixels[0] * 255).round().byte()
    return whole, product_masks(whole.float() / 255, STRIDE)


def _learnt(model: object, rank: int = 4) -> dict[str, torch.Tensor]:
    """An adapter as it may be after training."""
    state = Adapter(model, rank).state_dict()
    return {name: value + 0.05 * torch.randn_like(value) for name, value in state.items()}


def test_matrices_of_low_rank_begin_as_nothing(language: Language) -> None:
    model = smol.joined(vlm.weights(), language)
    pixels, keep = _pictures()
    asked = (pixels.float() / 255, PRODUCT, (5, COUNT - 1), keep)
    before = films.ask(model, *asked)
    Adapter(model, 4).watch(model)
    assert torch.equal(films.ask(model, *asked), before)


def test_what_is_merged_answers_as_what_was_watched(language: Language) -> None:
    torch.manual_seed(7)
    model = smol.joined(vlm.weights(), language)
    learnt = _learnt(model)
    merged = smol.merged(vlm.weights(), language, learnt)
    adapter = Adapter(model, 4)
    adapter.load_state_dict(learnt)
    pixels, keep = _pictures()
    asked = (pixels.float() / 255, PRODUCT, (5, COUNT - 1), keep)
    plain = films.ask(model, *asked)
    adapter.watch(model)
    watched = films.ask(model, *asked)
    assert (watched - plain).abs().max() > 1e-3
    torch.testing.assert_close(films.ask(merged, *asked), watched, atol=1e-5, rtol=0)


@torch.no_grad()
def test_questions_of_one_pass_are_blind_to_one_another(language: Language) -> None:
    model = smol.joined(vlm.weights(), language)
    pixels, keep = _pictures()
    together = films.ask(model, pixels.float() / 255, PRODUCT, (5, COUNT - 1), keep)
    for e, end in enumerate((5, COUNT - 1)):
        for q, name in enumerate(PRODUCT):
            alone = films.ask(model, pixels[: end + 1].float() / 255, (name,), (end,), keep[: end + 1])
            torch.testing.assert_close(alone[0, 0], together[e, q], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_the_engine_answers_as_training_did_with_a_language_model_of_another_make(
    language: Language, tmp_path: Path
) -> None:
    torch.manual_seed(7)
    model = smol.merged(vlm.weights(), language, _learnt(smol.joined(vlm.weights(), language)))
    smol.save(model, language.tokenizer, tmp_path)
    pixels, keep = _pictures()
    expected = films.ask(smol.load(tmp_path), pixels.float() / 255, PRODUCT, (COUNT - 1,), keep)[0]
    got = fleet_answers(tmp_path, pixels.permute(0, 2, 3, 1).numpy(), keep, 1)
    assert np.ptp(got) > 1e-3
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-4)


def _trainer(folder: Path, clips: Path, language: Language, **others: int) -> SmolTrainer:
    trainer = SmolTrainer(replace(PLAN, **others), folder, vlm.weights(), language)
    trainer.store.folder = clips
    return trainer


@pytest.mark.long
def test_training_continues_where_it_was_stopped_and_leaves_the_language_model(
    language: Language, clips: Path, tmp_path: Path
) -> None:
    whole = _trainer(tmp_path / "whole", clips, language)
    before = {name: value.clone() for name, value in whole.model.model.language_model.state_dict().items()}
    assert whole.run(lambda: False)
    assert all(
        torch.equal(value, before[name])
        for name, value in whole.model.model.language_model.state_dict().items()
    )
    halves = _trainer(tmp_path / "halves", clips, language)
    assert not halves.run(lambda: halves.step == 2)
    halves = _trainer(tmp_path / "halves", clips, language)
    assert halves.step == 2
    assert halves.run(lambda: False)
    for name, value in whole.mean.items():
        assert torch.equal(halves.mean[name], value), name
    whole.write(tmp_path / "out", {})
    told = smol.learnt_in(tmp_path / "out", vlm.weights())
    assert told["low.0.out"].abs().max() > 0  # the language model's part has learnt, too
    for name, value in whole.mean.items():
        torch.testing.assert_close(told[name].float(), value, atol=1e-2, rtol=1e-2)


@pytest.mark.long
def test_the_projector_first_learns_words_for_what_is_in_a_cell(
    language: Language, clips: Path, tmp_path: Path
) -> None:
    trainer = _trainer(tmp_path, clips, language, steps=40, align=40)
    first = trainer._loss(0)[0].item()
    assert trainer.run(lambda: False)
    assert trainer._loss(0)[0].item() < 0.7 * first


@pytest.mark.long
def test_films_whose_answers_lie_in_no_stride_are_asked_their_own_question(
    language: Language, clips: Path, tmp_path: Path
) -> None:
    trainer = _trainer(tmp_path, clips, language, rows=160)
    kinds = set()
    for step in range(8):
        lesson = trainer.lessons.far(random.Random(step), step)
        assert lesson.asked[-1].text in {question.text for question in far.FAR}
        kinds.add(lesson.asked[-1].text)
        assert lesson.told is not None
        assert lesson.told[:, 0].tolist() == [True, False] * (len(lesson.told) // 2)
        assert len(lesson.asked) == len(lesson.which) + 1
    assert len(kinds) > 1
    with_told, _ = trainer._asked(
        replace(lesson, tokens=trainer.model.adapter.projector(lesson.tokens.float()))
    )
    turned = replace(lesson, tokens=trainer.model.adapter.projector(lesson.tokens.float()), told=~lesson.told)
    assert with_told != trainer._asked(turned)[0]


@pytest.mark.long
def test_lessons_that_other_processes_make_are_the_same(language: Language, tmp_path: Path) -> None:
    plan = replace(PLAN, far=0.5)
    alone = SmolTrainer(plan, tmp_path / "alone", vlm.weights(), language)
    ahead = smol.Ahead(plan, tmp_path / "helped", vlm.weights(), 2)
    try:
        for step in range(plan.steps):
            here, there = alone.lessons.lesson(step), ahead.lesson(step)
            assert torch.equal(here.tokens.bfloat16(), there.tokens)
            assert here.asked == there.asked
            assert torch.equal(here.which, there.which)
            assert (here.told is None) == (there.told is None)
        ahead.made.append((9, None))
        with pytest.raises(ValueError, match="asked for"):
            ahead.lesson(7)
    finally:
        ahead.close()


@pytest.mark.long
def test_an_estimate_counts_every_kind_of_lesson_and_draws_the_first_films_alone(
    language: Language, tmp_path: Path
) -> None:
    trainer = SmolTrainer(
        replace(PLAN, steps=8, far=0.5, films=9), tmp_path / "smol", vlm.weights(), language
    )
    kinds = [trainer.lessons.kind(step) for step in range(8)]
    assert {"words", "far"} < set(kinds)
    told = trainer.estimate()
    drawn = {path.name for path in trainer.states.folder.glob("*.pt")}
    assert drawn <= {"000000.pt", *(f"{kind}-0000.pt" for kind in far.KINDS)}
    words, _ = trainer.cost(kinds.index("words"))
    assert told["flops"] > 8 * words, "lessons that the language model reads cost more"


def test_training_learns_on_from_an_adapter(language: Language, tmp_path: Path) -> None:
    torch.manual_seed(5)
    begin = _learnt(smol.joined(vlm.weights(), language))
    trainer = SmolTrainer(PLAN, tmp_path, vlm.weights(), language, begin=begin)
    assert not trainer.run(seconds=1e-9)  # out of time before its first step: saved as it began
    assert trainer.step == 0
    for name, value in begin.items():
        assert torch.equal(trainer.mean[name], value), name


def test_an_adapter_belongs_to_the_tower_that_it_was_trained_with(tmp_path: Path) -> None:
    committed = Path(__file__).parents[3] / "bench"
    assert "low.0.out" in smol.learnt_in(committed / "smol", committed / "across")
    model = vlm.load(committed / "across")
    model.model.multi_modal_projector.linear_1.bias.data += 1
    vlm.save(model, tmp_path)
    with pytest.raises(ValueError, match="another vision tower"):
        smol.learnt_in(committed / "smol", tmp_path)


def test_a_missing_package_is_said_with_its_remedy(tmp_path: Path) -> None:
    told = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, ["smol", "--folder", str(tmp_path)])
    assert told.exit_code == 2
    assert "uv pip install --target" in told.output
