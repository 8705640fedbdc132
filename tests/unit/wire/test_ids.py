"""Stable ids."""

from __future__ import annotations

from hypothesis import given, strategies as st

from lookout.wire import names_id, stable_id


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_ids_differ_where_parts_differ(left: list[str], right: list[str]) -> None:
    assert (stable_id(*left) == stable_id(*right)) == (left == right)


def test_a_pattern_of_cameras_names_ids_as_they_are_and_what_fits() -> None:
    for pattern, camera in (
        ("yard [2]", "yard [2]"),
        ("yard-*", "yard-1"),
        ("yard [2]", "yard 2"),
        ("*", "*"),
    ):
        assert names_id(pattern, camera)
    for pattern, camera in (("yard-*", "Yard-1"), ("yard", "yard-1"), ("yard [2]", "yard [3]")):
        assert not names_id(pattern, camera)
