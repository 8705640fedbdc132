"""What training computes is what the fleet computes: tower, plan and engine give the same p(yes)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lookout.engines.transformers.engine import load_engine
from lookout.engines.types import Question, WindowRequest
from lookout.families import load_tower
from lookout.vision import FrameInput
from lookout.windows import EncodedFrame, Planner, StrideBlock, WindowSettings
from watchbench import model as vlm, sight
from watchbench.questions import BY_NAME, PRODUCT
from watchbench.training import moving_groups, windows


@pytest.mark.slow
def test_the_engine_answers_as_training_did() -> None:
    folder = vlm.weights("tolerant")
    pixels, _ = windows(1, 12, 31)
    whole = (pixels[0] * 255).round().byte()
    keep = moving_groups(pixels, torch.Generator().manual_seed(2))[0]
    expected = sight.ask(vlm.load(folder), whole.float() / 255, PRODUCT, (11,), keep)[0]

    masks = [row.view(4, 4).numpy() for row in keep]
    pictures = whole.permute(0, 2, 3, 1).numpy()
    tower = load_tower(folder)
    tokens = tower.encode(
        [FrameInput(picture[None], mask) for picture, mask in zip(pictures, masks, strict=True)]
    )
    frames = [
        EncodedFrame(500_000 * k, k % 4 == 0, mask, seen.tokens)
        for k, (mask, seen) in enumerate(zip(masks, tokens, strict=True))
    ]
    blocks = [StrideBlock("gate/0", i, tuple(frames[4 * i : 4 * i + 4])) for i in range(3)]
    engine = load_engine(folder)
    plan = Planner(engine.layout, WindowSettings()).plan(blocks, None)
    asked = tuple(Question(name, BY_NAME[name].text) for name in PRODUCT)
    answers = engine.run([WindowRequest(plan, blocks, asked, keep=False)])[0].unwrap().answers
    np.testing.assert_allclose([answer.p_yes for answer in answers], expected.numpy(), atol=1e-4)
