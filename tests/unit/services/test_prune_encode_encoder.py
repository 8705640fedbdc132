"""Frames of several cameras in one batch of the vision tower."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from lookout.errors import TransientError
from lookout.models.vision import FrameInput, FrameTokens, Tower
from lookout.services.prune_encode.encoder import Encoder
from tests.eventually import eventually
from tests.unit.services.prune_encode_case import encoder, picture

FRAMES = [[FrameInput(picture(n, 112, 112)[None], np.ones((4, 4), bool))] for n in range(6)]


class HeldTower:
    """The real tower, held back at its first batch; `room`: frames that its memory takes."""

    def __init__(self, tower: Tower, room: int = 64) -> None:
        self.tower, self.room = tower, room
        self.sizes: list[int] = []
        self.started, self.go = threading.Event(), threading.Event()

    def encode(self, frames: Sequence[FrameInput]) -> list[FrameTokens]:
        self.sizes.append(len(frames))
        self.started.set()
        assert self.go.wait(60)
        if len(frames) > self.room:
            raise torch.OutOfMemoryError("no memory")
        return self.tower.encode(frames)


@pytest.mark.parametrize(
    ("limit", "room", "sizes"), [(64, 64, [1, 5]), (4, 64, [1, 4, 1]), (64, 2, [1, 5, 2, 3, 1, 2])]
)
def test_frames_of_cameras_that_wait_share_a_batch(limit: int, room: int, sizes: list[int]) -> None:
    tower = encoder("internvl").tower
    held = HeldTower(tower, room)
    shared = Encoder(held, limit)  # type: ignore[arg-type]
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(shared.encode, FRAMES[0])]
        assert held.started.wait(60)
        for count, frames in enumerate(FRAMES[1:], 1):
            asked.append(pool.submit(shared.encode, frames))
            eventually(lambda count=count: shared._thread.waiting() == count)
        held.go.set()
        encoded = [each.result(60) for each in asked]
        got = [block.tokens for block in encoded]
    shared.close()
    assert held.sizes == sizes
    assert all(block.seconds > 0 for block in encoded)
    assert shared.frames == 6
    for tokens, frames in zip(got, FRAMES, strict=True):
        [alone] = tower.encode(frames)
        np.testing.assert_allclose(tokens, alone.tokens.numpy(), atol=1e-5)


def test_a_closed_encoder_refuses() -> None:
    shared = Encoder(encoder("internvl").tower, 64)
    shared.close()
    with pytest.raises(TransientError, match="closed"):
        shared.encode(FRAMES[0])
