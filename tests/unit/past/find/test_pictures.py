"""Pictures of somebody's own: encoded as the tower encodes their pixels, and harmless whatever they are."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image

from lookout.models.vision import FrameInput
from lookout.past.find.pictures import PictureEncoder, PictureError
from lookout.past.find.types import PICTURE_BYTES
from tests.eventually import eventually
from tests.find_world import Spec, pictures_of, settings, tower

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder() -> Iterator[PictureEncoder]:
    made = PictureEncoder(tower, settings())
    yield made
    made.close()


def drawn() -> np.ndarray:
    """A picture of a rendered camera, uint8 [height, width, 3]."""
    return next(pictures_of(Spec("ward", "room", 5, 1, {0: "lying"}))).sample.pixels


def packed(pixels: np.ndarray, kind: str = "JPEG", **more: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **more)
    return file.getvalue()


def test_a_picture_has_the_tokens_of_its_pixels(encoder: PictureEncoder) -> None:
    pixels = drawn()
    block = encoder.block(packed(pixels, quality=100, subsampling=0))
    (frame,) = block.frames
    assert frame.keep.all()
    (whole,) = tower().encode([FrameInput(pixels[None], np.ones_like(frame.keep))])
    alike = torch.nn.functional.cosine_similarity(frame.tokens.float(), whole.tokens.float(), dim=-1)
    assert alike.min() > 0.98
    # Another size of the same picture is stretched to the model's input, as a camera's is.
    large = np.asarray(Image.fromarray(pixels).resize((640, 360), Image.Resampling.BICUBIC))
    (same,) = encoder.block(packed(large, quality=95)).frames
    other = torch.nn.functional.cosine_similarity(same.tokens.float(), whole.tokens.float(), dim=-1)
    assert other.mean() > 0.9


def sized(picture: bytes, height: int, width: int) -> bytes:
    """A JPEG whose header says another size."""
    at = next(n for n in range(len(picture) - 1) if picture[n] == 0xFF and picture[n + 1] in (0xC0, 0xC2))
    size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return picture[: at + 5] + size + picture[at + 9 :]


def test_a_hostile_picture_is_refused_and_the_next_one_is_encoded(encoder: PictureEncoder) -> None:
    good = packed(drawn())
    noise = np.random.default_rng(1).integers(0, 256, 2000, dtype=np.uint8).tobytes()
    for hostile, words in (
        (b"", "must be a JPEG of at most 1 MiB"),
        (packed(drawn(), "PNG"), "must be a JPEG"),
        (b"\xff\xd8\xff" + bytes(PICTURE_BYTES), "must be a JPEG of at most 1 MiB"),
        (b"\xff\xd8\xff" + noise, "cannot be decoded"),
        (good[:30], "cannot be decoded"),
        (sized(good, 65500, 65500), "cannot be decoded"),
        (sized(good, 0, 0), "cannot be decoded"),
    ):
        with pytest.raises(PictureError, match=words):
            encoder.block(hostile)
        assert encoder.block(good).frames


def test_decoding_happens_in_a_process_of_its_own_that_ends() -> None:
    made = PictureEncoder(tower, settings())
    made.block(packed(drawn()))
    assert made._pool is not None
    pids = made._pool.pids()
    assert pids
    assert os.getpid() not in pids
    made.close()
    eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
