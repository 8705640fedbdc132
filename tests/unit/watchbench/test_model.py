"""The tiny model is a stock checkpoint, and training's shortcuts equal the stock computation."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.unit.watchbench.conftest import SMALL
from watchbench import films, model as vlm, sight, training
from watchbench.questions import QUESTIONS


@pytest.fixture
def folder(small: Path) -> Path:
    return small


def normal(pixels: torch.Tensor) -> torch.Tensor:
    return (pixels - torch.tensor(vlm.MEAN).view(3, 1, 1)) / torch.tensor(vlm.STD).view(3, 1, 1)


def test_the_tokenizer_knows_every_question(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    unknown = vlm.vocabulary()["<unk>"]
    texts = [vlm.PREFIX, vlm.TAIL, f"Frame012 <img>{vlm.IMAGE_TOKEN * 3}</img>\n"]
    for text in texts + [wording for question in QUESTIONS for wording in question.wordings]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == vlm.encode(text)
        assert unknown not in ids


def test_reload_is_exact(folder: Path) -> None:
    from transformers import InternVLForConditionalGeneration

    stock = InternVLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    pixels = torch.rand(2, 3, 112, 112)
    with torch.no_grad():
        mine = vlm.see(vlm.load(folder), pixels)
        theirs = stock.model.get_image_features(pixel_values=normal(pixels)).pooler_output
    torch.testing.assert_close(mine, torch.stack(list(theirs)), atol=1e-6, rtol=0)


def test_installed_weights_leave_what_lies_beside_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "tiny"
    shutil.copytree(folder, old)
    (old / "lookout_windows.json").write_text('{"fps": 2}')
    before = (old / "model.safetensors").read_bytes()
    monkeypatch.setattr(vlm, "TINY", old)
    model = vlm.load(folder)
    with torch.no_grad():
        model.model.language_model.norm.weight += 1
    assert vlm.replace_weights(model, "tolerant", {"steps": 3}) == old
    assert (old / "lookout_windows.json").read_text() == '{"fps": 2}'
    assert (old / "model.safetensors").read_bytes() != before
    assert json.loads((old / "watchbench.json").read_text())["steps"] == 3


def test_packed_questions_equal_one_prompt_each(folder: Path) -> None:
    model = vlm.load(folder)
    pixels = torch.rand(3, 3, 112, 112)
    asked = [
        vlm.Asked(QUESTIONS[0].text, 2),
        vlm.Asked(QUESTIONS[1].text, 1),
        vlm.Asked(QUESTIONS[2].text, 2),
    ]
    table = vlm.vocabulary()
    with torch.no_grad():
        packed = vlm.answer(model, vlm.see(model, pixels)[None], asked).answers
        for i, question in enumerate(asked):
            shown = question.after + 1
            frames = "".join(f"Frame{k + 1:03d} <img>{vlm.IMAGE_TOKEN * 16}</img>\n" for k in range(shown))
            ids = torch.tensor([vlm.encode(vlm.PREFIX + frames + question.text + vlm.TAIL)])
            logits = model(input_ids=ids, pixel_values=normal(pixels[:shown])).logits[0, -1]
            torch.testing.assert_close(packed[0, i], logits[[table["Yes"], table["No"]]], atol=1e-5, rtol=0)


def test_dropped_tokens_leave_no_trace(folder: Path) -> None:
    """Neither pixels nor tokens of dropped groups reach the answer."""
    model = vlm.load(folder)
    pixels = torch.rand(4, 3, 112, 112)
    keep = torch.rand(4, 16, generator=torch.Generator().manual_seed(1)) > 0.5
    keep[0] = True
    spoiled = pixels.clone()
    for k, group in (~keep).nonzero().tolist():
        y, x = group // 4 * 28, group % 4 * 28
        spoiled[k, :, y : y + 28, x : x + 28] = 0.5
    answers = [films.ask(model, p, ("person", "left"), (3,), keep) for p in (pixels, spoiled)]
    torch.testing.assert_close(answers[0], answers[1], atol=1e-6, rtol=0)
    assert not torch.allclose(answers[0], films.ask(model, pixels, ("person", "left"), (3,)))


def test_frames_are_read_at_the_token_that_closes_them(folder: Path) -> None:
    model = vlm.load(folder)
    pixels = torch.rand(4, 3, 112, 112)
    keep = torch.rand(4, 16, generator=torch.Generator().manual_seed(2)) > 0.6
    asked = [vlm.Asked(QUESTIONS[0].text, 3)]
    with torch.no_grad():
        reading = vlm.answer(model, vlm.see(model, pixels, keep)[None], asked, keep[None], layers=(0, 2))
    close = model.model.language_model.embed_tokens.weight[vlm.vocabulary()["</img>"]]
    assert torch.equal(reading.frames[0], close.expand(1, 4, -1))
    assert reading.frames[1].shape == (1, 4, 96)


def test_the_fleet_reads_the_same_layout(folder: Path) -> None:
    from lookout.models.families import load_layout

    layout = load_layout(folder)
    assert list(layout.prefix) == vlm.encode(vlm.PREFIX)
    assert list(layout.question_tail) == vlm.encode(vlm.TAIL)
    assert (layout.yes, layout.no) == (vlm.vocabulary()["Yes"], vlm.vocabulary()["No"])


def test_committed_weights_load_and_unknown_ones_are_refused() -> None:
    folder = vlm.weights("tolerant")
    assert (folder / "model.safetensors").stat().st_size <= 12 * 2**20
    assert json.loads((folder / "lookout_layout.json").read_text()) == vlm.layout()
    model = vlm.load(folder)
    assert model.config.vision_config.image_size in ([112, 112], (112, 112))
    with pytest.raises(FileNotFoundError, match="tolerant"):
        vlm.weights("no-such")


def test_training_goes_on_from_weights_with_a_smaller_vocabulary(folder: Path, tmp_path: Path) -> None:
    """Every word keeps its row, wherever it stood; a new one starts as the unknown word."""
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    saved = json.loads((old / "tokenizer.json").read_text())
    words = [word for word in saved["model"]["vocab"] if word != "crowded"]
    saved["model"]["vocab"] = {word: row for row, word in enumerate(words)}
    (old / "tokenizer.json").write_text(json.dumps(saved))
    table, rows = vlm.vocabulary(), vlm.load(old).model.language_model.embed_tokens.weight
    state = vlm.inherited(old)
    got = state["model.language_model.embed_tokens.weight"]
    for word, row in saved["model"]["vocab"].items():
        assert torch.equal(got[table[word]], rows[row])
    assert torch.equal(got[table["crowded"]], rows[saved["model"]["vocab"]["<unk>"]])
    name = next(name for name in state if "vision_tower" in name)
    assert torch.equal(state[name], vlm.load(old).state_dict()[name])


@pytest.mark.long
def test_mirrored_pictures_have_mirrored_labels() -> None:
    pixels, labels = training.single_frames(16, 3)
    turned, (coarse, fine) = training.mirrored(pixels, labels, 1)
    assert torch.equal(coarse.view(16, 4, 4, -1).flip(2), labels[0].view(16, 4, 4, -1))
    assert torch.equal(fine.view(16, 8, 8, -1).flip(2), labels[1].view(16, 8, 8, -1))
    ratio = turned.mean((2, 3)) / pixels.mean((2, 3))
    assert ratio.min() > 0.7
    assert ratio.max() < 1.3


@pytest.mark.long
def test_training_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped and resumed equals never stopped."""
    monkeypatch.setattr(vlm, "build", partial(vlm.build, SMALL))
    plan = training.Plan(
        steps1=2,
        steps2=2,
        batch1=4,
        batch2=1,
        painters=0,
        frames=4,
        prefixes=2,
        questions=2,
        frozen=0.0,
        compiled=False,
    )

    class StoppedError(Exception):
        pass

    class Fragile(training.Trainer):
        def _questions(self) -> None:
            raise StoppedError

    whole = training.Trainer(plan, tmp_path / "whole")
    whole.run()
    with pytest.raises(StoppedError):
        Fragile(plan, tmp_path / "broken").run()
    again = training.Trainer(plan, tmp_path / "broken")
    assert (again.stage, again.step) == (1, 2)
    again.run()
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(value, again.model.state_dict()[name], atol=1e-6, rtol=1e-5)


def test_f1_of_a_tally_is_the_textbook_s() -> None:
    tally = sight.Tally()
    for said, true in ((True, True), (True, False), (False, True), (True, True), (False, False)):
        tally.add(said, true)
    assert tally.f1 == pytest.approx(0.667, abs=1e-3)
    assert sight.Tally(false=3).f1 is None


def test_what_one_model_sees_more_than_another_has_an_interval_over_cameras() -> None:
    def cameras(found: int) -> list[sight.Score]:
        scores = []
        for number in range(20):
            score = sight.Score()
            score.add("left", number < found, True)
            score.add("person", True, True)
            scores.append(score)
        return scores

    gain = sight.gains(cameras(5), cameras(15))
    # F1 of "left": 10/25 and 30/35; of "person" 1; the other questions had no case.
    assert (gain.before, gain.after) == (0.7, 0.9285)
    assert gain.by_question["left"] == pytest.approx(0.457, abs=1e-3)
    assert gain.by_question["lying"] is None
    low, high = gain.interval
    assert 0 < low < 0.2285 < high
    same = sight.gains(cameras(9), cameras(9))
    assert same.interval == (0.0, 0.0)
    whole = cameras(5)[0]
    whole.merge(cameras(5)[19])
    assert whole.tallies["left"] == sight.Tally(hit=1, miss=1)


@pytest.mark.footage
def test_no_scored_clip_is_trained_on(footage: Path) -> None:
    from watchbench.footage import BACKDROP_CLIPS, MOVING_CLIPS, PEOPLE_CLIPS

    scored = {clip.path for clip in sight.CLIPS}
    assert not scored & {*BACKDROP_CLIPS, *MOVING_CLIPS, *PEOPLE_CLIPS}
    assert all((footage / path).is_file() for path in scored)
