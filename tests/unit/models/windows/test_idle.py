"""An idle state holds while every two of its blocks agree."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given, strategies as st

from lookout.models.windows import BlockChange, IdleState

TOLERANCE = 3
CHANGES = st.lists(
    st.tuples(st.integers(0, 9), st.lists(st.integers(0, 6), min_size=2, max_size=2)), max_size=7
)


@given(CHANGES, st.integers(-1, 6))
def test_an_idle_state_holds_exactly_while_all_blocks_agree(
    drawn: list[tuple[int, list[int]]], hole: int
) -> None:
    changes = [
        BlockChange(number + (number > hole >= 0), moved > 0, np.array(grey, np.uint8))
        for number, (moved, grey) in enumerate(drawn)
    ]
    quiet = all(change.quiet for change in changes)
    joined = all(b.index == a.index + 1 for a, b in pairwise(changes))
    agree = all(
        int(np.abs(a.luma.astype(int) - b.luma).max()) <= TOLERANCE for a, b in combinations(changes, 2)
    )
    assert (IdleState.of(changes, TOLERANCE) is not None) == bool(changes and quiet and joined and agree)


def test_pictures_of_another_size_or_none_end_an_idle_state() -> None:
    state = IdleState.of([BlockChange(0, True, np.zeros(4, np.uint8))], TOLERANCE)
    assert state is not None
    assert state.after(BlockChange(1, True, np.zeros(9, np.uint8))) is None
    assert IdleState.of([BlockChange(0, True, np.zeros(0, np.uint8))], TOLERANCE) is None
