"""A back-test on a cluster is compared with what was committed, window by window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.cluster.steps.recordings import unlike


def verdicts(**changed: object) -> dict[int, Mapping[str, Any]]:
    """Verdicts of 24 windows; the third one with other fields."""
    found: dict[int, Mapping[str, Any]] = {
        window: {"outcome": "answered", "p_yes": 0.25} for window in range(24)
    }
    return {**found, 2: {**found[2], **changed}}


def test_the_same_verdicts_are_alike() -> None:
    assert unlike(verdicts(), verdicts(p_yes=0.25005)) == []


@pytest.mark.parametrize("changed", [{"p_yes": 0.2503}, {"outcome": "unknown"}])
def test_another_answer_is_told(changed: dict[str, object]) -> None:
    (line,) = unlike(verdicts(), verdicts(**changed))
    assert line.startswith("back-test, window 2:")


def test_a_window_that_one_side_lacks_is_told() -> None:
    less = verdicts()
    del less[2]
    assert len(unlike(verdicts(), less)) == len(unlike(less, verdicts())) == 1


def test_nothing_is_not_alike() -> None:
    assert unlike({}, {}) == ["back-test: 0 windows were committed"]
