"""Which cameras have left a partition, by decode's checkpoints, and which partition counts are possible."""

from __future__ import annotations

import pytest

from lookout.errors import LookoutRuntimeError
from lookout.runtime.worker import growth
from lookout.runtime.worker.growth import Departure, Places
from lookout.v1.state_pb2 import DecodeState
from lookout.wire import RECORDING_FLOWS, SEGMENTS, camera_topics

AT_MS = 1_700_000_000_000


def place(opened_ms: int, arrived_ms: int, partition: int = 0) -> DecodeState:
    return DecodeState(epoch=(AT_MS + opened_ms) * 1000 + partition, arrived_ms=AT_MS + arrived_ms)


def test_a_camera_that_speaks_in_a_newer_epoch_only_has_left() -> None:
    places = Places()
    places.note("gate", 1, place(0, 4000, 1))
    assert places.departures() == [], "in one partition alone"
    places.note("gate", 5, place(6000, 6000, 5))
    assert places.departures() == [Departure("gate", 1, (AT_MS + 0) * 1000 + 1, 5)]
    places.note("gate", 1, None)
    assert places.departures() == [], "its old partition has forgotten it"


def test_two_producers_of_one_id_are_no_departure() -> None:
    """Both partitions are spoken in: decode warns of that, and neither may be told that the camera left."""
    places = Places()
    places.note("gate", 1, place(0, 8000, 1))
    places.note("gate", 5, place(6000, 6000, 5))
    assert places.departures() == []


def test_a_camera_that_moved_twice_has_left_both_partitions() -> None:
    places = Places()
    for partition, opened_ms in ((1, 0), (5, 10_000), (9, 20_000)):
        places.note("gate", partition, place(opened_ms, opened_ms + 5000, partition))
    assert {(departure.partition, departure.target) for departure in places.departures()} == {(1, 9), (5, 9)}


def test_a_segment_behind_the_notice_is_followed_by_another_notice() -> None:
    """It was on its way when the camera moved, and opened an epoch that nothing else would end."""
    places = Places()
    places.note("gate", 5, place(6000, 10_000, 5))
    places.note("gate", 1, place(9000, 9000, 1))
    assert places.departures() == []
    places.note("gate", 5, place(6000, 9001 + growth.QUIET_MS, 5))
    assert [(d.partition, d.target) for d in places.departures()] == [(1, 5)]


def test_a_checkpoint_without_a_stream_is_no_place() -> None:
    """A camera of which nothing could ever be decoded has a checkpoint for its quota alone."""
    places = Places()
    places.note("gate", 1, DecodeState())
    places.note("gate", 5, place(0, 0, 5))
    assert places.departures() == []


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        (0, "0 is not a valid number of partitions; give a number from 1 to 10000"),
        (10_001, "10001 is not a valid number of partitions; give a number from 1 to 10000"),
        (11, r"frames.v1 has 12 partitions; Kafka cannot remove partitions, so give at least 12"),
    ],
)
def test_a_wrong_number_is_refused_in_words(partitions: int, message: str) -> None:
    with pytest.raises(LookoutRuntimeError, match=message):
        growth._check({"camera.segments.v1": 4, "frames.v1": 12}, partitions)


def test_what_is_read_first_grows_last_and_recordings_stay() -> None:
    names = [topic.name for topic in camera_topics()]
    assert names[0] == SEGMENTS.name
    assert not {topic.name for flow in RECORDING_FLOWS for topic in flow.topics} & set(names)
