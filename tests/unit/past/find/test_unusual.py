"""Spans unlike what a camera usually shows at that hour."""

from __future__ import annotations

import numpy as np

from lookout.past.find.unusual import LEAST_CLUSTERS, unusual_spans
from lookout.past.memory.ranking import CameraPast, Landmarks

HOUR_US, SPAN_US = 3_600_000_000, 10_000_000


def landmarks(begins_us: list[int], values: list[float]) -> Landmarks:
    """One cluster of a span's length for each value; keys of two layers lie near it."""
    draw = np.random.default_rng(3).normal(0, 0.01, (2, len(values), 8))
    keys = (draw + np.array(values)[None, :, None]).astype(np.float16)
    begin = np.array(begins_us, np.int64)
    return Landmarks(keys, np.array([1, 2]), begin, begin + SPAN_US - 1, np.full(len(begin), 4), 1)


def past(begins_us: list[int], values: list[float]) -> CameraPast:
    return CameraPast([(min(begins_us), max(begins_us) + SPAN_US)], [landmarks(begins_us, values)])


def test_what_a_camera_seldom_shows_at_that_hour_is_unusual() -> None:
    # By day the picture is 0, by night 1; once by night it is 0.
    noon, night = 12 * HOUR_US, 24 * HOUR_US
    begins = [noon + n * SPAN_US for n in range(20)] + [night + n * SPAN_US for n in range(20)]
    values = [0.0] * 20 + [1.0] * 20
    values[30] = 0.0
    (odd,) = unusual_spans({"gate": past(begins, values)}, SPAN_US)
    assert odd.span.begin_us == begins[30]
    assert odd.score > 2
    assert not unusual_spans({"gate": past(begins, values)}, SPAN_US, since_us=begins[31])
    assert not unusual_spans({"gate": past(begins, values)}, SPAN_US, until_us=begins[30])


def test_neighbours_are_one_span_and_the_oddest_come_first() -> None:
    begins = [n * SPAN_US for n in range(60)]
    values = [0.0] * 60
    values[10] = values[11] = 1.0
    other = [*values]
    other[10], other[11], other[40] = 0.0, 0.0, 9.0
    found = unusual_spans({"yard": past(begins, values), "gate": past(begins, other)}, SPAN_US)
    assert [(one.span.camera, one.span.begin_us, one.span.end_us) for one in found] == [
        ("gate", begins[40], begins[41]),
        ("yard", begins[10], begins[12]),
    ]
    assert len(unusual_spans({"yard": past(begins, values)}, SPAN_US, limit=0)) == 0


def test_nothing_is_unusual_where_little_is_known() -> None:
    few = LEAST_CLUSTERS - 1
    begins = [n * SPAN_US for n in range(few)]
    assert not unusual_spans({"gate": past(begins, [0.0] * (few - 1) + [9.0])}, SPAN_US)
    assert not unusual_spans({"gate": CameraPast([(0, 5)])}, SPAN_US)
