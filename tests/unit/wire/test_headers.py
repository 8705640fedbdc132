"""Headers by name."""

from __future__ import annotations

import pytest

from lookout.wire import headers


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (b"0", 0),
        (b"1769846400000", 1769846400000),
        (b"9" * 18, 10**18 - 1),
        (b"9" * 19, None),
        (b"9" * 100_000, None),
        ("\u00b2".encode(), None),  # a digit for Python, but no number
        ("\uff11".encode(), None),
        (b"-1", None),
        (b"1e3", None),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_a_number_is_a_few_plain_digits(value: bytes, number: int | None) -> None:
    assert headers.number([("when", value)], "when") == number


def test_the_newest_header_of_a_name_counts() -> None:
    assert headers.number([("when", b"1"), ("other", b"x"), ("when", b"2")], "when") == 2
    assert headers.number([("when", b"1"), ("when", None)], "when") == 1
    assert headers.number(None, "when") is None
