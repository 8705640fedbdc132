"""Frames of several cameras in one batch of the vision tower."""

from __future__ import annotations

import numpy as np
import pytest

from lookout.services.prune_encode.encoder import Encoder
from lookout.vision import FrameInput
from tests.unit.services.prune_encode_case import encoder, picture


def test_frames_of_several_cameras_share_a_batch() -> None:
    tower = encoder("internvl").tower
    shared = Encoder(tower, 64)
    frames = [[FrameInput(picture(n, 112, 112)[None], np.ones((4, 4), bool))] for n in range(6)]
    try:
        alone = [shared.encode(each).tokens for each in frames]
        together = shared.encode([frame for each in frames for frame in each]).tokens
        assert np.allclose(np.concatenate(alone), together, atol=1e-5)
    finally:
        shared.close()
    with pytest.raises(RuntimeError, match="closed"):
        shared.encode(frames[0])
