"""A calm is what every pair of its blocks says it is."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lookout.windows import BlockChange, IdleState

TOLERANCE = 3
LOOKS = st.lists(
    st.tuples(st.integers(0, 9), st.lists(st.integers(0, 6), min_size=2, max_size=2)), max_size=7
)


@given(LOOKS, st.integers(-1, 6))
def test_a_calm_holds_exactly_while_all_blocks_agree(told: list[tuple[int, list[int]]], hole: int) -> None:
    looks = [
        BlockChange(number + (number > hole >= 0), moved > 0, np.array(grey, np.uint8))
        for number, (moved, grey) in enumerate(told)
    ]
    quiet = all(look.quiet for look in looks)
    joined = all(b.index == a.index + 1 for a, b in pairwise(looks))
    agree = all(
        int(np.abs(a.luma.astype(int) - b.luma).max()) <= TOLERANCE for a, b in combinations(looks, 2)
    )
    assert (IdleState.of(looks, TOLERANCE) is not None) == bool(looks and quiet and joined and agree)


def test_pictures_of_another_size_or_none_end_a_calm() -> None:
    calm = IdleState.of([BlockChange(0, True, np.zeros(4, np.uint8))], TOLERANCE)
    assert calm is not None
    assert calm.after(BlockChange(1, True, np.zeros(9, np.uint8))) is None
    assert IdleState.of([BlockChange(0, True, np.zeros(0, np.uint8))], TOLERANCE) is None
