"""Stable ids."""

from __future__ import annotations

from hypothesis import given, strategies as st

from lookout.wire import stable_id


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_ids_differ_where_parts_differ(left: list[str], right: list[str]) -> None:
    assert (stable_id(*left) == stable_id(*right)) == (left == right)
