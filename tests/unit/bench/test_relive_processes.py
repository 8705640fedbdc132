"""What is counted of a killed process: on times that are given, without processes."""

from __future__ import annotations

import zlib
from collections import Counter

import pytest

from bench.relive import BUSY, KEY, STRIDE_S, relive
from bench.relive_processes import Play, camera_names


class Silent(Play):
    """A play of which nothing is published: its times are given."""

    def __init__(self, times: dict[tuple[str, int], tuple[float, float | None]]) -> None:
        super().__init__("", None, sorted({camera for camera, _ in times}))  # type: ignore[arg-type]
        self._complete = {key: complete for key, (complete, _) in times.items()}
        self._decided = {key: decided for key, (_, decided) in times.items() if decided is not None}


@pytest.mark.parametrize(("cameras", "partitions"), [(45, 15), (10, 4), (3, 7)])
def test_cameras_are_spread_evenly_by_kafkas_default_partitioner(cameras: int, partitions: int) -> None:
    names = camera_names(cameras, partitions)
    assert len(set(names)) == cameras
    counts = Counter(zlib.crc32(name.encode()) % partitions for name in names)
    assert max(counts.values()) - min(counts.values()) <= (cameras % partitions > 0)


def test_first_outcomes_and_the_last_late_one_are_counted_from_the_kill() -> None:
    late = 2 * STRIDE_S + 1
    play = Silent(
        {
            ("lost", 1): (99.0, 100.2),  # committed by the killed process just before
            ("lost", 2): (101.0, 115.0),
            ("lost", 3): (103.0, 116.0),
            ("lost", 4): (115.5, 116.5),
            ("other", 2): (110.0, 110.0 + late),
            ("early", 1): (50.0, 50.0 + 2 * late),
        }
    )
    assert play.first_s(100.0, ["lost"]) == 15.0
    assert play.caught_up_s(100.0) == 16.0
    assert sorted(play.waits(105.0)) == [1.0, late]


def test_it_is_not_over_while_a_window_waits_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 200.0)
    done = {("lost", 2): (101.0, 115.0), ("lost", 3): (103.0, 116.0)}
    assert Silent(done).live(100.0, ["lost"])
    assert not Silent({**done, ("lost", 4): (120.0, None)}).live(100.0, ["lost"])
    assert not Silent({**done, ("lost", 4): (180.0, 190.0)}).live(100.0, ["lost"]), "late ten seconds ago"


def test_windows_before_the_watch_was_known_have_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 200.0)
    done = {("lost", 2): (101.0, 115.0), ("lost", 3): (103.0, 116.0)}
    assert Silent({**done, ("lost", 0): (90.0, None), ("lost", 1): (92.0, None)}).live(100.0, ["lost"])
    assert not Silent({**done, ("other", 0): (90.0, None)}).live(100.0, ["lost"]), "it never had an outcome"


def test_whose_windows_wait_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 200.0)
    play = Silent(
        {
            ("early", 0): (90.0, None),
            ("early", 1): (101.0, 102.0),
            ("late", 3): (148.0, 149.0),
            ("late", 4): (150.0, None),
            ("late", 5): (190.0, 199.0),
            ("new", 9): (199.0, None),
        }
    )
    play._partitions = {"late": 7}
    told = play.behind()
    assert told == "1 of 3 cameras wait (partitions 7), the longest for 50 s; the last late outcome 1 s ago"


def test_the_simulation_answers_a_lost_camera_before_it_is_caught_up_with() -> None:
    found = relive(3, 45, 15, busy=0.4)
    assert found is not None
    assert 13.0 <= found.first_s <= found.caught_up_s
    assert relive(3, 45, 15, busy=BUSY) is None, "two of three pods that are 70 % busy cannot do it all"
    lighter = relive(3, 45, 15, busy=0.4, key=KEY / 2)
    assert lighter is not None
    assert lighter.first_s <= found.first_s
