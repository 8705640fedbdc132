"""Hidden pixels of every format that decoders give."""

from __future__ import annotations

import av
import numpy as np
import pytest

from lookout.video.segments.greying import greyed

SIZES = [(64, 48), (62, 46)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["yuv420p", "yuv422p", "yuv444p", "nv12", "gray", "yuv420p10le", "rgb24"])
def test_every_sample_that_a_hidden_pixel_shares_is_grey(name: str, size: tuple[int, int]) -> None:
    width, height = size
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 100, (height, width, 3), np.uint8)
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=name)
    hidden = np.zeros((height, width), np.bool_)
    hidden[11:24, 7:30] = True
    shown = greyed(frame, hidden).to_ndarray(format="gray").astype(int)
    before = frame.to_ndarray(format="gray").astype(int)
    assert np.ptp(shown[11:24, 7:30]) <= 1
    assert abs(shown[11:24, 7:30].mean() - 128) < 20
    far = np.ones_like(hidden)
    far[4:32, 0:38] = False
    assert np.abs(shown - before)[far].max() <= 1


@pytest.mark.parametrize("size", SIZES)
def test_chroma_is_grey_where_one_of_its_pixels_is_hidden(size: tuple[int, int]) -> None:
    width, height = size
    frame = av.VideoFrame(width, height, "yuv420p")
    for plane in frame.planes:
        plane.update(bytes([7]) * plane.buffer_size)
    hidden = np.random.default_rng(2).random((height, width)) < 0.1
    planes = greyed(frame, hidden).planes
    for plane, step in zip(planes, (1, 2, 2), strict=True):
        samples = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height, : plane.width]
        expected = hidden.reshape(height // step, step, width // step, step).any(axis=(1, 3))
        np.testing.assert_array_equal(samples == 128, expected)
