"""The rasteriser against a loop over pixels, through every rotation, mirror, crop and letterbox."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from lookout.pruning import Cells, PatchMap, cover
from lookout.pruning.raster import SLIVER
from lookout.pruning.residual import compensated_difference, patch_means
from lookout.video.motion import Fit, Geometry
from tests.unit.pruning.samples import Block, prediction_blocks

GEOMETRIES = st.builds(
    lambda size, out, fit, rotation, mirror: Geometry.fitted(
        size, out, fit, rotation=rotation, mirror=mirror
    ),
    st.tuples(st.integers(9, 60), st.integers(9, 60)),
    st.sampled_from([(24, 24), (32, 16), (16, 32)]),
    st.sampled_from(list(Fit)),
    st.sampled_from([0, 90, 180, 270]),
    st.booleans(),
)
BLOCKS = st.lists(
    st.builds(
        Block,
        x=st.integers(-8, 64),
        y=st.integers(-8, 64),
        w=st.sampled_from([4, 8, 16]),
        h=st.sampled_from([4, 8, 16]),
    ),
    max_size=12,
)


def touched(
    geometry: Geometry, box: tuple[float, float, float, float], rows: int, cols: int, patch: int
) -> set:
    """Patches that share more than slivers with a box of the coded picture, one patch at a time."""
    x, y, w, h = box
    x0, y0, x1, y1 = (float(v) for v in geometry.boxes(x, y, w, h))
    px, py, pw, ph = geometry.place
    x0, x1 = max(x0, px) + SLIVER, min(x1, px + pw) - SLIVER
    y0, y1 = max(y0, py) + SLIVER, min(y1, py + ph) - SLIVER
    return {
        (r, c)
        for r in range(rows)
        for c in range(cols)
        if min(x1, (c + 1) * patch) - max(x0, c * patch) > 0
        and min(y1, (r + 1) * patch) - max(y0, r * patch) > 0
    }


@given(blocks=BLOCKS, width=st.integers(5, 50), height=st.integers(5, 50), size=st.sampled_from([4, 8, 16]))
@settings(max_examples=60, deadline=None)
def test_cover_is_what_a_loop_over_pixels_finds(
    blocks: list[Block], width: int, height: int, size: int
) -> None:
    cells = Cells(width, height, size)
    found = cover(prediction_blocks(blocks), cells)
    area: dict[tuple[int, int], int] = {}
    for i, block in enumerate(blocks):
        for y in range(max(0, block.y), min(height, block.y + block.h)):
            for x in range(max(0, block.x), min(width, block.x + block.w)):
                key = ((y // size) * cells.cols + x // size, i)
                area[key] = area.get(key, 0) + 1
    got = {(int(c), int(b)): float(a) for c, b, a in zip(found.cell, found.block, found.area, strict=True)}
    assert got == area


@given(geometry=GEOMETRIES, size=st.sampled_from([4, 8]), seed=st.integers(0, 1000))
@example(geometry=Geometry.fitted((50, 53), (24, 24), Fit.COVER), size=4, seed=0)
@settings(max_examples=60, deadline=None)
def test_a_patch_takes_the_largest_cell_touching_it(geometry: Geometry, size: int, seed: int) -> None:
    patch = 4
    rows, cols = geometry.out_height // patch, geometry.out_width // patch
    cells = Cells(geometry.width, geometry.height, size)
    field = np.random.default_rng(seed).random((cells.rows, cells.cols), np.float32)
    expected = np.zeros((rows, cols), np.float32)
    for r in range(cells.rows):
        for c in range(cells.cols):
            box = (c * size, r * size, min(size, cells.width - c * size), min(size, cells.height - r * size))
            for at in touched(geometry, box, rows, cols, patch):
                expected[at] = max(expected[at], field[r, c])
    got = PatchMap.of(geometry, cells, rows, cols, patch).largest(field[None])[0]
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_blocks_go_where_their_pixels_go(rotation: int, mirror: bool) -> None:
    """A bright square, turned as pixels are, lies on the patches its cell is mapped to."""
    geometry = Geometry.fitted((64, 32), (32, 32), rotation=rotation, mirror=mirror)
    picture = np.zeros((32, 64), np.float32)
    picture[8:16, 40:48] = 1
    upright = np.rot90(picture[:, ::-1] if mirror else picture, -rotation // 90)
    h, w = upright.shape
    expected = upright.reshape(4, h // 4, 4, w // 4).max(axis=(1, 3))
    cells = Cells(64, 32, 8)
    field = picture.reshape(4, 8, 8, 8).max(axis=(1, 3))
    assert np.array_equal(PatchMap.of(geometry, cells, 4, 4, 8).largest(field[None])[0], expected)


@pytest.mark.slow
@given(geometry=GEOMETRIES, seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_patch_means_are_means_over_pixel_centres(geometry: Geometry, seed: int) -> None:
    patch = 8
    rows, cols = geometry.out_height // patch, geometry.out_width // patch
    values = np.random.default_rng(seed).random((geometry.height, geometry.width), np.float32)
    total, count = np.zeros((rows, cols)), np.zeros((rows, cols))
    for y in range(geometry.height):
        for x in range(geometry.width):
            px, py = (float(v) for v in geometry.points(x + 0.5, y + 0.5))
            r, c = int(np.floor(py / patch)), int(np.floor(px / patch))
            if 0 <= r < rows and 0 <= c < cols:
                total[r, c] += values[y, x]
                count[r, c] += 1
    got = patch_means(values, geometry, rows, cols, patch)
    assert np.allclose(got, np.where(count > 0, total / np.maximum(count, 1), 0), atol=1e-5)


def test_compensation_explains_a_shifted_picture() -> None:
    before = np.random.default_rng(0).integers(0, 255, (32, 48), np.uint8)
    now = np.roll(before, (2, -3), (0, 1))
    dx, dy = np.full((4, 6), 3, np.float32), np.full((4, 6), -2, np.float32)
    gap = compensated_difference(now, before, dx, dy, 8)
    assert not gap[2:, :-3].any()
    still = compensated_difference(now, before, dx * 0, dy * 0, 8)
    assert np.array_equal(still, np.abs(now.astype(np.float32) - before))
    with pytest.raises(ValueError, match="cannot be compared"):
        compensated_difference(now, before[:16], dx, dy, 8)
