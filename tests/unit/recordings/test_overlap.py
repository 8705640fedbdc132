from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings, strategies as st

from lookout.recordings import Mode, Timings, run_groups
from tests.eventually import eventually

SECONDS = st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=12)


@pytest.mark.parametrize("mode", list(Mode))
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 9), st.integers(1, 3))
def test_every_mode_takes_every_group_once_in_order(mode: Mode, count: int, waiting: int) -> None:
    results, timings = run_groups(range(count), lambda group: group * 2, mode=mode, waiting=waiting)
    assert results == [2 * i for i in range(count)]
    assert len(timings.decode_s) == len(timings.prefill_s) == count


@given(SECONDS, st.floats(0, 3))
def test_the_ideal_is_never_below_equation_3_nor_above_sequential(
    groups: list[tuple[float, float]], start: float
) -> None:
    decode, prefill = zip(*groups, strict=True)
    timings = Timings(Mode.OVERLAPPED, start, decode, prefill, 1.0)
    assert timings.ideal >= timings.bound - 1e-9
    assert timings.ideal <= start + sum(decode) + sum(prefill) + 1e-9
    if len(set(decode)) == len(set(prefill)) == 1:
        assert timings.ideal == pytest.approx(timings.bound)


def test_equation_3_by_hand() -> None:
    timings = Timings(Mode.OVERLAPPED, 0.5, (2.0, 2.0, 2.0), (1.0, 1.0, 1.0), 8.0)
    assert timings.bound == 7.5  # 6 s of decoding, the last prefill, the start
    assert timings.efficiency == pytest.approx(7.5 / 8.0)
    assert Timings(Mode.OVERLAPPED, 0.0, (1.0, 1.0), (5.0, 5.0), 11.0).bound == 11.0


def order(mode: Mode, waiting: int = 1) -> list[str]:
    """What happened in which order."""
    seen: list[str] = []

    def produce() -> Iterator[int]:
        for i in range(3):
            seen.append(f"d{i}")
            yield i

    run_groups(produce(), lambda i: seen.append(f"p{i}"), mode=mode, waiting=waiting)
    return seen


def test_sequential_decodes_first_and_interleaved_takes_turns() -> None:
    assert order(Mode.SEQUENTIAL) == ["d0", "d1", "d2", "p0", "p1", "p2"]
    assert order(Mode.INTERLEAVED) == ["d0", "p0", "d1", "p1", "d2", "p2"]


def test_overlapped_decodes_while_a_group_is_prefilled() -> None:
    """The prefill of the first group waits for the decoding of the second: in turns it would never end."""
    second = threading.Event()

    def produce() -> Iterator[int]:
        yield 0
        second.set()
        yield 1

    results, _ = run_groups(produce(), lambda i: second.wait(240), mode=Mode.OVERLAPPED)
    assert results == [True, True]


def test_the_queue_is_bounded() -> None:
    made, go = [], threading.Event()

    def produce() -> Iterator[int]:
        for i in range(20):
            made.append(i)
            yield i

    def consume(group: int) -> int:
        if group == 0:
            eventually(lambda: len(made) == 4)  # as far ahead as it may be
            go.set()
        assert len(made) <= group + 1 + 2 + 1  # in work, waiting, in the producer's hand
        return group

    run_groups(produce(), consume, mode=Mode.OVERLAPPED, waiting=2)
    assert go.is_set()
    assert len(made) == 20


@pytest.mark.parametrize("mode", list(Mode))
def test_an_error_of_either_side_ends_both(mode: Mode) -> None:
    before = set(threading.enumerate())

    def broken() -> Iterator[int]:
        yield 0
        raise ValueError("the decoder failed")

    with pytest.raises(ValueError, match="the decoder failed"):
        run_groups(broken(), lambda i: i, mode=mode)
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while not closed.is_set():
                yield 1
        finally:
            closed.set()

    def refuse(_: int) -> int:
        raise KeyboardInterrupt

    if mode is not Mode.SEQUENTIAL:
        with pytest.raises(KeyboardInterrupt):
            run_groups(endless(), refuse, mode=mode)
        assert closed.wait(240)
    assert set(threading.enumerate()) <= before


def test_a_producer_that_works_ahead_tells_how_long_it_worked() -> None:
    clock = iter([0.0, 3.0, 3.0, 5.0, 5.0])
    _, timings = run_groups([1, 2], lambda i: i, busy=lambda: next(clock), mode=Mode.SEQUENTIAL, start_s=1.0)
    assert timings.decode_s == (3.0, 2.0)
    assert timings.total_s >= 1.0
