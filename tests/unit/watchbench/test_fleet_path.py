"""What training computes is what the fleet computes: tower, plan and engine give the same p(yes)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lookout.models.engines.transformers.engine import load_engine
from lookout.models.engines.types import Question, WindowRequest
from lookout.models.families import load_tower
from lookout.models.vision import FrameInput
from lookout.models.windows import EncodedFrame, Planner, StrideBlock, WindowSettings
from lookout.pruning import temporal_pairs
from watchbench import films, model as vlm, qwen
from watchbench.clips import product_masks
from watchbench.questions import BY_NAME, PRODUCT
from watchbench.training import moving_groups, windows

COUNT, STRIDE = 12, 4


def fleet_answers(folder: Path, pictures: np.ndarray, keep: torch.Tensor, together: int) -> list[float]:
    """p(yes) of the product's questions by the fleet's tower, planner and engine."""
    masks = [row.view(4, 4).numpy() for row in keep]
    shown = temporal_pairs(COUNT, together)
    tower = load_tower(folder)
    tokens = tower.encode(
        [FrameInput(pictures[list(pair)], mask) for pair, mask in zip(shown, masks, strict=True)]
    )
    frames = [
        EncodedFrame(500_000 * pair[0], pair[0] % STRIDE == 0, mask, seen.tokens)
        for pair, mask, seen in zip(shown, masks, tokens, strict=True)
    ]
    size = STRIDE // together
    blocks = [
        StrideBlock("gate/0", i, tuple(frames[size * i : size * (i + 1)])) for i in range(COUNT // STRIDE)
    ]
    engine = load_engine(folder)
    plan = Planner(engine.layout, WindowSettings()).plan(blocks, None)
    asked = tuple(Question(name, BY_NAME[name].text) for name in PRODUCT)
    answers = engine.run([WindowRequest(plan, blocks, asked, keep=False)])[0].unwrap().answers
    return [answer.p_yes for answer in answers]


@pytest.mark.slow
def test_the_engine_answers_as_training_did() -> None:
    folder = vlm.weights("tolerant")
    pixels, _ = windows(1, COUNT, 31)
    whole = (pixels[0] * 255).round().byte()
    keep = moving_groups(pixels, torch.Generator().manual_seed(2))[0]
    expected = films.ask(vlm.load(folder), whole.float() / 255, PRODUCT, (COUNT - 1,), keep)[0]
    got = fleet_answers(folder, whole.permute(0, 2, 3, 1).numpy(), keep, 1)
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-4)


@pytest.mark.slow
def test_the_engine_answers_as_training_did_with_pairs_of_frames_and_three_axes(tmp_path: Path) -> None:
    """Random weights, from the second of twelve frames on with static tokens dropped."""
    torch.manual_seed(5)
    model = vlm.build(form=vlm.QWEN)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value), alpha=0.02)
    vlm.save(model, tmp_path)
    pixels, _ = windows(1, COUNT, 31)
    whole = (pixels[0] * 255).round().byte()
    keep = product_masks(whole.float() / 255, STRIDE, qwen.PAIR)
    assert keep.shape == (COUNT // qwen.PAIR, 16)
    assert keep[:: STRIDE // qwen.PAIR].all()
    assert not keep.all()
    expected = films.ask(vlm.load(tmp_path), whole.float() / 255, PRODUCT, (COUNT - 1,), keep)[0]
    got = fleet_answers(tmp_path, whole.permute(0, 2, 3, 1).numpy(), keep, qwen.PAIR)
    assert np.ptp(got) > 1e-3
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-4)
