"""An instance whose window or grid differs from the running ones refuses before it joins the group."""

from __future__ import annotations

import pytest

from lookout.errors import StartupError
from lookout.runtime.worker import ServiceSettings
from lookout.runtime.worker.fleet_check import (
    check_group,
    client_id,
    differences,
    is_compatible,
    mark,
    version_of,
)

SHARED = {"fps": "2", "grid": "16x16", "window_s": "10"}
OTHER = {**SHARED, "grid": "32x32"}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def check(*answers: list[str]) -> Clock:
    """Ask for the members; the last answer stays."""
    clock, left = Clock(), list(answers)
    settings = ServiceSettings(mode="local", instance="one", session_timeout_s=3.0)
    own = client_id("decode", SHARED)
    check_group(
        settings,
        "decode",
        own,
        members=lambda: left.pop(0) if len(left) > 1 else left[0],
        clock=clock,
        sleep=clock.sleep,
    )
    return clock


def test_the_client_id_tells_what_is_shared() -> None:
    assert client_id("decode", SHARED) == "decode_fps-2_grid-16x16_windows-10"


def test_releases_are_told_apart_where_both_have_a_name() -> None:
    """A member that an older chart started has none, and an upgrade runs beside it."""
    one, two, none = (client_id("decode", SHARED, release) for release in ("cams.one", "cams.two", ""))
    assert differences(one, two) == ["release is cams.two there and cams.one here"]
    assert differences(one, one) == differences(one, none) == differences(none, one) == []


def test_the_version_is_told_and_not_compared() -> None:
    old, new = client_id("decode", SHARED), client_id("decode", SHARED, "cams.one", "1.4.0+cpu")
    assert (version_of(old), version_of(new)) == ("", "1.4.0cpu")
    assert differences(old, new) == differences(new, old) == []
    assert differences(new, client_id("decode", OTHER, "cams.one", "1.5.0")) == [
        "grid is 32x32 there and 16x16 here"
    ]


def test_an_empty_group_and_equal_members_are_joined_at_once() -> None:
    assert check([]).now == 0.0
    assert check([client_id("decode", SHARED)]).now == 0.0


def test_a_member_with_another_grid_is_refused_by_name() -> None:
    with pytest.raises(StartupError, match="grid is 32x32 there and 16x16 here"):
        check([client_id("decode", OTHER)])


def test_a_member_that_was_killed_is_waited_for_until_its_session_is_over() -> None:
    assert check([client_id("decode", OTHER)], [client_id("decode", OTHER)], []).now > 0


def test_a_reader_of_another_kind_in_the_group_is_no_concern() -> None:
    assert differences(client_id("decode", SHARED), "rdkafka") == []
    assert differences(client_id("decode", SHARED), "decode") == []


def test_checkpoints_of_another_model_are_compatible_and_of_another_grid_are_not() -> None:
    assert is_compatible(mark(SHARED, "model-a"), SHARED)
    assert mark(SHARED, "model-a") != mark(SHARED, "model-b")
    assert not is_compatible(mark(OTHER, "model-a"), SHARED)
    assert is_compatible("of an earlier release", SHARED)
