"""Counts, sizes and times as people read them."""

from __future__ import annotations

from time import localtime, strftime

import pytest

from lookout.cli.formats import count_text, local_time, minutes_text, size_text


def test_one_thing_is_singular() -> None:
    assert [count_text(number, "camera") for number in (0, 1, 2)] == ["0 cameras", "1 camera", "2 cameras"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 << 10, "1.5 MiB"),
        (1 << 30, "1.0 GiB"),
        (3 << 40, "3072.0 GiB"),
    ],
)
def test_bytes_have_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert size_text(count) == text


def test_minutes_go_on_beyond_an_hour() -> None:
    assert [minutes_text(seconds) for seconds in (0, 59.6, 3661)] == ["0:00", "1:00", "61:01"]


def test_a_time_is_that_of_this_machine() -> None:
    assert local_time(1_700_000_000_123_456) == strftime("%Y-%m-%d %H:%M:%S", localtime(1_700_000_000))
