"""Numbers of callers: one sentence for what is no float."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lookout import LookoutError, Pipeline, Session
from lookout.recordings.analysis import AnalysisSettings
from lookout.recordings.analysis.settings import with_options
from lookout.values import check_finite, check_whole

DIGITS = 10**4999
WRONG = {"digits": DIGITS, "below": -DIGITS, "nan": math.nan, "inf": math.inf, "text": "1,5", "none": None}
SETTINGS = ("fps", "start_s", "end_s", "rho", "threads", "part_frames", "score", "group_frames")


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_finite_number_is_refused_by_its_name(kind: str) -> None:
    value: Any = WRONG[kind]
    with pytest.raises(LookoutError, match=r"^fps\b.{,80}$"):
        check_finite("fps", value, LookoutError)


def test_a_number_is_a_float() -> None:
    assert check_finite("fps", 2, LookoutError) == 2.0


@pytest.mark.parametrize("name", ["fps", "stride_s", "window_s"])
@pytest.mark.parametrize("kind", [Pipeline, Session])
def test_an_integer_of_thousands_of_digits_loads_no_model(kind: Any, name: str) -> None:
    with pytest.raises(LookoutError, match=rf"^{name}=inf must be a finite number$"):
        kind(questions=["Is a person in view?"], **{name: DIGITS})


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_an_analysis_refuse_it(name: str) -> None:
    with pytest.raises(LookoutError, match=r"^.{,300}$"):
        with_options(AnalysisSettings(), {name: -DIGITS})


def test_an_unknown_score_is_named_with_those_there_are() -> None:
    with pytest.raises(LookoutError, match=r"score must be one of .*random"):
        with_options(AnalysisSettings(), {"score": "loudest"})


def test_a_pipeline_that_asks_nothing_says_so() -> None:
    with (
        Pipeline() as pipeline,
        pytest.raises(LookoutError, match=r"^the pipeline has no questions: give questions="),
    ):
        pipeline.watch("clip.mp4")


@pytest.mark.parametrize("value", ["2", None, [2]])
@pytest.mark.parametrize("name", ["fps", "rho", "start_s"])
def test_a_number_is_no_text(name: str, value: Any) -> None:
    with pytest.raises(LookoutError, match=f"^{name} must be a number, not"):
        with_options(AnalysisSettings(), {name: value})


def test_whole_numbers_are_whole() -> None:
    assert check_whole("frames", np.int64(3), 1, 5, LookoutError) == 3
    for value in (1.5, True, "3", None, 0, 6, 10**5000):
        with pytest.raises(LookoutError, match=r"^frames must be "):
            check_whole("frames", value, 1, 5, LookoutError)  # type: ignore[arg-type]
