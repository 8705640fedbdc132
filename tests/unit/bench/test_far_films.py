"""What the bench of films whose answers lie in no stride makes of p(yes)."""

from __future__ import annotations

import numpy as np
import pytest

from bench import far, pages
from watchbench.far import KINDS

YES = np.arange(24) % 2 == 0
UNIT = np.arange(24) // 2


def test_a_regression_finds_an_order_that_sizes_hide() -> None:
    """Films of a unit have the same five values in another order, as films of `order` do."""
    values = np.tile([0.5, 0.5, 0.5], (24, 1))
    values[:, 0], values[:, 2] = np.where(YES, 0.9, 0.1), np.where(YES, 0.1, 0.9)
    assert far.row_of(far.fitted(values, YES, UNIT), YES, UNIT)["accuracy"] == 1.0
    assert far.row_of(far.fitted(np.sort(values, 1), YES, UNIT), YES, UNIT)["accuracy"] == 0.5


def test_a_way_that_says_the_same_of_both_films_of_a_unit_is_right_by_chance() -> None:
    row = far.row_of(np.repeat(np.linspace(0, 1, 12), 2), YES, UNIT)
    assert row == {"accuracy": 0.5, "accuracy 95 %": [0.5, 0.5], "auc": 0.5}


def test_films_of_a_unit_have_the_same_scene_and_either_answer() -> None:
    one, other, *_ = far.films("order", 4)
    assert (one.yes, other.yes, one.visitor, other.visitor) == (True, False, False, False)
    assert one.scene.seed == other.scene.seed
    assert [film.visitor for film in far.films("return", 8)] == [False] * 4 + [True] * 4


@pytest.mark.parametrize("way", ["strides, max", "strides, mean", "even 16"])
@pytest.mark.parametrize("kind", ["order", "third", "dwell", "thrice"])
def test_what_the_page_calls_chance_is(kind: str, way: str) -> None:
    low, high = pages.results()["far"].figures["tables"][kind][way]["accuracy 95 %"]
    assert low <= 0.5 <= high


@pytest.mark.parametrize("kind", ["order", "third", "dwell"])
def test_what_the_page_says_only_windows_answer_is_answered_better_by_them(kind: str) -> None:
    tables = pages.results()["far"].figures["tables"]
    for way in ("strides, max", "strides, mean", "even 16"):
        assert tables["default less others"][kind][way][0] > 0


def test_what_the_page_says_of_reuse_and_of_the_aim_is_so() -> None:
    tables = pages.results()["far"].figures["tables"]
    less = tables["default less others"]
    assert all(low <= 0 <= high for low, high in (less[kind]["masks, whole"] for kind in KINDS))
    assert {name for name in KINDS if tables[name]["full"]["accuracy"] >= 0.85} == {*KINDS} - {"return"}
    assert less["thrice"]["strides, fitted"][1] < 0
    assert less["third"]["strides, fitted in time"][0] <= 0 <= less["third"]["strides, fitted in time"][1]
