"""The simulation of a lost pod: more partitions spread its cameras, and too few are never caught up."""

from __future__ import annotations

from bench.relive import BEFORE, REBALANCE_S, relive_s, waited_s
from lookout.services.prefill.settings import PrefillSettings


def test_cameras_of_a_lost_pod_are_caught_up_with_where_many_pods_take_them() -> None:
    lost_s = PrefillSettings.model_fields["session_timeout_s"].default + REBALANCE_S
    few, more, many = (relive_s(10, 100, partitions) for partitions in (20, 40, 100))
    assert few is None, "two pods take half a pod's cameras each"
    assert more is not None
    assert many is not None
    assert lost_s < many <= more


def test_waiting_for_a_model_to_load_is_worse_than_leaving_the_group() -> None:
    """Of ten pods; a pod that gets its own partitions back has all of its cameras to catch up with."""
    left, killed = relive_s(10, 1000, 120, notice_s=0.0), relive_s(10, 1000, 120)
    waited = waited_s(10, 1000, 40.0)
    assert left is not None
    assert killed is not None
    assert waited is not None
    assert left < killed < waited


def test_key_windows_of_a_takeover_are_spread_by_their_time() -> None:
    """The more of them a batch takes, the sooner its cameras are caught up with; prefill's defaults are
    nearly as fast as no limit, and cameras that a pod has already wait for less than half a second more."""
    one, two, default, any_number = (
        relive_s(10, 1000, 120, key_limit=limit) for limit in (BEFORE, 2, None, 1000)
    )
    assert one is not None
    assert two is not None
    assert default is not None
    assert any_number is not None
    assert any_number <= default < two < one
    assert default - any_number < 1.5


def test_a_planned_restart_is_over_with_its_rebalance() -> None:
    """Feeding the successor before its partitions move could save nothing of it."""
    assert relive_s(10, 1000, 120, notice_s=0.0) == REBALANCE_S
