"""What masks hide: polygons of any shape on pictures of any size, and motion on their squares."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lookout.video.motion import Geometry, MaskLayer, PictureMask, PredictionBlocks
from lookout.video.motion.hiding import WHOLE, Polygon, hidden_pixels

SHARES = st.floats(0, 1, width=32)
POLYGONS = st.lists(st.tuples(SHARES, SHARES), min_size=3, max_size=12, unique=True).map(tuple)
SIDES = st.integers(1, 70)
SQUARE: Polygon = ((0.25, 0.25), (0.5, 0.25), (0.5, 0.5), (0.25, 0.5))


def hides(*polygons: Polygon) -> PictureMask:
    """A mask of one layer."""
    return PictureMask((MaskLayer(hide=polygons),))


def keeps(*polygons: Polygon) -> PictureMask:
    """A mask of one layer that shows these alone."""
    return PictureMask((MaskLayer(keep=polygons),))


def crossings(polygon: Polygon, x: float, y: float) -> int:
    """How many edges lie right of a point: odd inside."""
    count = 0
    for (x0, y0), (x1, y1) in zip(polygon, (*polygon[1:], polygon[0]), strict=True):
        if (y0 <= y) != (y1 <= y) and x0 + (y - y0) * (x1 - x0) / (y1 - y0) > x:
            count += 1
    return count


def test_a_square_hides_its_pixels_and_their_neighbours() -> None:
    hidden = hidden_pixels(hides(SQUARE), 40, 40)
    assert hidden[10:20, 10:20].all()
    hidden[8:23, 8:23] = False
    assert not hidden.any()


def test_a_square_that_is_kept_shows_its_inside_alone() -> None:
    hidden = hidden_pixels(keeps(SQUARE), 40, 40)
    assert not hidden[13:17, 13:17].any()
    hidden[10:20, 10:20] = True
    assert hidden.all()


@settings(max_examples=60, deadline=None)
@given(polygon=POLYGONS, width=SIDES, height=SIDES, points=st.lists(st.tuples(SHARES, SHARES), max_size=20))
def test_no_point_of_a_polygon_is_shown_and_none_outside_a_kept_one(
    polygon: Polygon, width: int, height: int, points: list[tuple[float, float]]
) -> None:
    hidden = hidden_pixels(hides(polygon), width, height)
    kept = ~hidden_pixels(keeps(polygon), width, height)
    for x, y in (*points, *polygon):
        column, row = min(int(x * width), width - 1), min(int(y * height), height - 1)
        if (x, y) in polygon:
            assert hidden[row, column]
            assert not kept[row, column]
        elif crossings(polygon, x, y) % 2:
            assert hidden[row, column]
        elif not crossings(polygon, x, y):
            assert not kept[row, column] or _is_level(polygon, y)
    assert not (hidden.all() and kept.any())


def _is_level(polygon: Polygon, y: float) -> bool:
    """Whether a corner lies on the line, where counting edges says nothing."""
    return any(math.isclose(y, corner, abs_tol=1e-6) for _, corner in polygon)


@settings(max_examples=40, deadline=None)
@given(polygon=POLYGONS, width=SIDES, height=SIDES)
def test_a_polygon_hides_at_least_what_it_shows_alone(polygon: Polygon, width: int, height: int) -> None:
    """Layers only add."""
    alone = hidden_pixels(hides(polygon), width, height)
    both = hidden_pixels(PictureMask((MaskLayer(hide=(polygon,)), MaskLayer(keep=(SQUARE,)))), width, height)
    assert not (alone & ~both).any()
    assert (~alone & ~hidden_pixels(keeps(polygon), width, height)).sum() == 0


@pytest.mark.parametrize(
    "polygon",
    [
        ((0.1, 0.1), (0.2, 0.2)),
        ((0.1, 0.1), (0.1, 0.1), (0.1, 0.1), (0.2, 0.2)),
        ((0.1, 0.1), (0.2, 0.2), (math.nan, 0.3)),
        ((0.1, 0.1), (0.2, 0.2), (0.3, math.inf)),
        ((0.1, 0.1), (0.2, 0.2), (0.3, -0.01)),
        ((0.1, 0.1), (0.2, 0.2), (1.01, 0.3)),
    ],
)
def test_what_is_no_polygon_in_the_picture_is_rejected(polygon: Polygon) -> None:
    with pytest.raises(ValueError, match=r"polygon needs|outside the picture"):
        MaskLayer(hide=(polygon,))


def test_a_polygon_without_area_hides_its_line_and_keeps_nothing() -> None:
    line: Polygon = ((0.0, 0.5), (0.5, 0.5), (1.0, 0.5))
    assert hidden_pixels(hides(line), 20, 20)[10].all()
    assert hidden_pixels(keeps(line), 20, 20).all()


def test_a_polygon_that_crosses_itself_hides_both_ways_and_shows_neither() -> None:
    star = tuple(
        (0.5 + 0.5 * math.sin(turn * math.tau * 2 / 5), 0.5 - 0.5 * math.cos(turn * math.tau * 2 / 5))
        for turn in range(5)
    )
    star = tuple((min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0)) for x, y in star)
    assert hidden_pixels(hides(star), 50, 50)[25, 25]
    assert hidden_pixels(keeps(star), 50, 50)[25, 25]


def test_thousands_of_points_are_drawn() -> None:
    turns = np.linspace(0, math.tau, 5000, endpoint=False)
    circle = tuple((0.5 + 0.4 * math.cos(turn), 0.5 + 0.4 * math.sin(turn)) for turn in turns)
    share = hidden_pixels(hides(circle), 200, 200).mean()
    assert math.pi * 0.4**2 <= share < math.pi * 0.42**2


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("mirror", [False, True])
def test_a_turned_picture_is_hidden_where_it_stands_upright(rotation: int, mirror: bool) -> None:
    mask = hides(((0.0, 0.0), (0.3, 0.0), (0.0, 0.2)))
    geometry = Geometry.fitted((48, 32), (16, 16), rotation=rotation, mirror=mirror)
    coded = mask.hidden(geometry)
    turned = np.rot90(coded[:, ::-1] if mirror else coded, -rotation // 90)
    np.testing.assert_array_equal(turned, hidden_pixels(mask, *geometry.upright))


def blocks_of(*boxes: tuple[int, int, int, int], move: float) -> PredictionBlocks:
    """Inter blocks with one displacement."""
    x, y, w, h = (np.array([box[axis] for box in boxes], np.int16) for axis in range(4))
    moves = np.full(len(boxes), move, np.float32)
    kinds = np.ones(len(boxes), np.uint8)
    return PredictionBlocks(x, y, w, h, moves, moves, kinds, np.full(len(boxes), -1, np.int8))


def test_blocks_on_hidden_squares_stand_still_whatever_they_are() -> None:
    geometry = Geometry.fitted((64, 48), (32, 32))
    mask = hides(((0.3, 0.4), (0.45, 0.4), (0.45, 0.6)))  # the square at (16, 16) alone
    outside = blocks_of((0, 0, 16, 16), (32, 0, 16, 16), move=3.0)
    known = mask.still(outside, geometry, "h264")
    assert known is not None
    for inside in ((16, 16, 8, 8), (30, 20, 16, 16), (0, 0, 64, 48)):
        both = blocks_of((0, 0, 16, 16), (32, 0, 16, 16), inside, move=3.0)
        found = mask.still(both, geometry, "h264")
        assert found is not None
        np.testing.assert_equal(asdict(found.blocks()), asdict(known.blocks()))
    own = known.blocks()
    assert sorted(zip(own.x[own.dx == 0], own.y[own.dx == 0], strict=True)) == [(16, 16)]


def test_without_blocks_outside_there_are_none() -> None:
    geometry = Geometry.fitted((64, 48), (32, 32))
    assert PictureMask((WHOLE,)).still(blocks_of((0, 0, 16, 16), move=1.0), geometry, "h264") is None
