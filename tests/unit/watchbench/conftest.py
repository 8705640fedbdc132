"""A checkpoint on which a step of training costs little."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from watchbench import model as vlm
from watchbench.shape import Shape

#: three layers fewer in either half than what ships, half as wide
SMALL = Shape(vision=64, vision_layers=2, text=96, text_layers=2, text_heads=3, kv_heads=1)
#: what the checkpoint says of the runs before
CARD = {"plan": {"seed": 1}, "long": {"steps": 9}}


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random checkpoint; read it, do not write to it."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("small") / "checkpoint"
    vlm.save(vlm.build(SMALL), folder, CARD)
    return folder
