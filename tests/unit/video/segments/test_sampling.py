from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from lookout.video.segments import SamplingGrid
from lookout.video.segments.sampling import Expected, Selector
from lookout.video.segments.timeline import Timeline

steps = st.lists(st.integers(1, 900_000), min_size=1, max_size=80)


def accumulate(steps: list[int], start: int = 0) -> list[int]:
    times = [start]
    for step in steps:
        times.append(times[-1] + step)
    return times


@settings(max_examples=100, deadline=None)
@given(steps, st.integers(1, 10**6), st.integers(0, 10**6), st.randoms())
def test_every_cell_gets_its_best_frame(gaps: list[int], step: int, origin: int, random: object) -> None:
    times = accumulate(gaps)
    keys = [random.random() < 0.2 for _ in times]  # type: ignore[attr-defined]
    bad = [random.random() < 0.2 for _ in times]  # type: ignore[attr-defined]
    grid = SamplingGrid(step, origin)
    picked = dict(grid.pick(times, keys, bad))
    cells: dict[int, list[int]] = {}
    for i, time in enumerate(times):
        if grid.slot(time) >= 0:
            cells.setdefault(grid.slot(time), []).append(i)
    assert picked.keys() == cells.keys()
    for slot, members in cells.items():
        assert all(2 * abs(times[i] - grid.time(slot)) <= step for i in members)
        best = min(members, key=lambda i: (bad[i], not keys[i], abs(times[i] - grid.time(slot)), i))
        assert picked[slot] == best


def test_a_steady_camera_gives_two_frames_a_second() -> None:
    times = [i * 40_000 for i in range(251)]
    assert [slot for slot, _ in SamplingGrid().pick(times)] == list(range(21))


def test_a_keyframe_within_half_a_step_wins() -> None:
    times = [i * 100_000 for i in range(20)]
    keys = [i == 7 for i in range(20)]
    assert (1, 7) in SamplingGrid().pick(times, keys)
    assert (1, 5) in SamplingGrid().pick(times)


def test_a_pause_leaves_grid_points_empty() -> None:
    times = [*range(0, 1_000_000, 100_000), *range(5_000_000, 6_000_000, 100_000)]
    assert [slot for slot, _ in SamplingGrid().pick(times)] == [0, 1, 2, 10, 11, 12]


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(1, 5), st.integers(10_000, 10**6))
def test_segments_share_the_grid_without_gap_or_double(gaps: list[int], parts: int, step: int) -> None:
    """Cut anywhere, with the open cell left to the next segment: no grid point is filled twice or lost."""
    times = accumulate(gaps)
    grid = SamplingGrid(step)
    cuts = sorted({len(times) * k // parts for k in range(parts + 1)})
    slots: list[int] = []
    first = 0
    for a, b in pairwise(cuts):
        end = times[b] if b < len(times) else None
        got = [slot for slot, _ in grid.pick(times[a:b], first_slot=first, end_us=end)]
        slots += got
        first = max([first, *(slot + 1 for slot in got)])
    assert slots == sorted({grid.slot(time) for time in times})


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(0, 5))
def test_the_selector_returns_every_item_once_in_order(gaps: list[int], first_slot: int) -> None:
    selector: Selector[int] = Selector(SamplingGrid(), first_slot)
    known: list[tuple[int, int | None]] = []
    for i, time in enumerate(accumulate(gaps)):
        known += selector.offer(i, time, i % 7 == 0, False)
    known += selector.finish(None)
    assert [item for item, _ in known] == list(range(len(gaps) + 1))


def test_time_that_runs_back_is_refused() -> None:
    selector: Selector[int] = Selector(SamplingGrid())
    selector.offer(0, 2_000_000, False, False)
    with pytest.raises(ValueError, match="went back"):
        selector.offer(1, 0, False, False)


def test_the_step_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        SamplingGrid(0)


def test_an_epoch_goes_on_only_within_its_bounds() -> None:
    expected = Expected(0, 10_000_000, early_us=1_000_000, late_us=5_000_000)
    assert [expected.holds(t) for t in (8_999_999, 9_000_000, 15_000_000, 15_000_001)] == [
        False,
        True,
        True,
        False,
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(-(2**40), 2**40)), min_size=1, max_size=50))
def test_segment_time_always_rises(stamps: list[int | None]) -> None:
    timeline = Timeline(Fraction(25))
    times = [timeline.add(stamp)[0] for stamp in stamps]
    assert times[0] == 0
    assert all(a < b for a, b in pairwise(times))


def test_a_clock_that_jumps_does_not_stop_time() -> None:
    timeline = Timeline(Fraction(10))
    stamps = [106_000_000, 106_100_000, 3_000_000, 3_100_000, 95_000_000_000]
    assert [timeline.add(stamp) for stamp in stamps] == [
        (0, False),
        (100_000, False),
        (200_000, True),
        (300_000, False),
        (400_000, True),
    ]
    assert timeline.end_container_us == 95_000_100_000


def test_a_pause_is_no_jump_and_repeats_lose_nothing() -> None:
    timeline = Timeline(Fraction(10))
    times = [timeline.add(stamp)[0] for stamp in (0, 100_000, 100_000, 6_100_000, None)]
    assert times == [0, 100_000, 100_001, 6_100_000, 6_200_000]
    assert timeline.jumps == 0
