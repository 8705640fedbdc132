"""Stable ids."""

from __future__ import annotations

from hypothesis import given, strategies as st

from lookout.wire import is_camera_id, name_fault, names_id, stable_id


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


def test_a_new_name_fits_addresses_patterns_and_commands() -> None:
    for name in ("gate", "yard-2", "Tür_3", "site/gate", "10.0.0.7:554", "門", "a" * 64):
        assert name_fault(name) == ""
    odd = (
        "",
        " gate",
        "yard [2]",
        "<b>gate</b>",
        "a*",
        "-gate",
        "gate\n",
        "gate?x=1",
        "a" * 65,
        "gate#1",
        "..",
    )
    for name in odd:
        assert "use 1 to 64" in name_fault(name)
    assert is_camera_id("yard [2]"), "a camera that has the name goes on"
