from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lookout.video.motion import Fit, Geometry

sizes = st.integers(1, 64)
pairs = st.tuples(sizes, sizes)
turns = st.sampled_from((0, 90, 180, 270))


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, turns, st.booleans(), st.integers(0, 2**16))
def test_points_move_as_pixels_do(width: int, height: int, turn: int, mirror: bool, seed: int) -> None:
    coded = np.random.default_rng(seed).integers(0, 2**30, (height, width))
    upright = np.rot90(coded[:, ::-1] if mirror else coded, -turn // 90)
    out = (upright.shape[1], upright.shape[0])
    geometry = Geometry.fitted((width, height), out, rotation=turn, mirror=mirror)
    y, x = np.mgrid[:height, :width].reshape(2, -1)
    x0, y0, x1, y1 = geometry.boxes(x, y, np.ones(x.size), np.ones(x.size))
    assert np.allclose(x1 - x0, 1)
    assert np.allclose(y1 - y0, 1)
    assert (upright[np.rint(y0).astype(int), np.rint(x0).astype(int)] == coded.ravel()).all()


@settings(max_examples=60, deadline=None)
@given(pairs, pairs, turns, st.booleans(), st.sampled_from(Fit))
def test_vectors_are_differences_of_points(
    size: tuple[int, int], out: tuple[int, int], turn: int, mirror: bool, fit: Fit
) -> None:
    geometry = Geometry.fitted(size, out, fit, rotation=turn, mirror=mirror)
    x0, y0 = geometry.points(3.0, 4.0)
    x1, y1 = geometry.points(3.0 + 2.5, 4.0 - 1.25)
    dx, dy = geometry.vectors(2.5, -1.25)
    assert np.allclose([x1 - x0, y1 - y0], [dx, dy], atol=1e-3)


@settings(max_examples=60, deadline=None)
@given(pairs, pairs, turns, st.sampled_from(Fit))
def test_the_picture_lands_on_its_place(
    size: tuple[int, int], out: tuple[int, int], turn: int, fit: Fit
) -> None:
    across, down = out
    geometry = Geometry.fitted(size, out, fit, rotation=turn)
    x0, y0, x1, y1 = geometry.boxes(0, 0, *size)
    x, y, w, h = geometry.place
    assert np.allclose([x0, y0, x1 - x0, y1 - y0], [x, y, w, h], atol=1e-2)
    if fit is Fit.STRETCH:
        assert (x, y, w, h) == (0, 0, across, down)
    if fit is Fit.COVER:
        assert x <= 0 <= x + w - across
        assert y <= 0 <= y + h - down
    if fit is Fit.CONTAIN:
        assert x >= 0
        assert y >= 0


def test_impossible_geometries_are_refused() -> None:
    with pytest.raises(ValueError, match="rotation"):
        Geometry.fitted((4, 4), (4, 4), rotation=45)
    with pytest.raises(ValueError, match="positive"):
        Geometry.fitted((0, 4), (4, 4))
