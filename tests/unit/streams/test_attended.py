"""The evidence of an answer shows its subject: a rendered car park with the model that comes with Lookout."""

from __future__ import annotations

from pathlib import Path

import pytest

import watchbench
from lookout import Pipeline

VISIBLE = ((9.0, 13.5), (27.0, 40.0))
"""Seconds of the film in which a vehicle is in view; windows of 10 s reach beyond on both sides."""


@pytest.mark.slow
def test_the_best_frame_of_a_vehicle_shows_one() -> None:
    (film,) = (Path(next(iter(watchbench.__path__))) / "films").glob("carpark-*.mp4")
    with Pipeline(questions=["Is a vehicle in view?"]) as pipeline:
        found = [answer for window in pipeline.windows(film) for answer in window.answers]
    best = [answer.evidence[0] for answer in found if (answer.p_yes or 0) > 0.5]
    assert len(best) > 10
    assert all(any(begin <= time < end for begin, end in VISIBLE) for time in best), best
