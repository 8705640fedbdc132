"""What a report and coverage measure answers against: when questions were asked, also while nothing came."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message

from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.records import Records
from lookout.services.gateway.history.shift import Unwatched, shift
from lookout.services.gateway.history.shift_text import sentences
from lookout.services.gateway.principal import Principal
from lookout.v1.access_pb2 import Role
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.gateway_pb2 import ReportHour, ShiftReport
from lookout.v1.watches_pb2 import Watch
from lookout.wire import CAMERAS, VERDICTS, WATCHES, to_json
from tests.fleet.gateway_records import BEGIN_MS, verdict
from tests.unit.services.test_gateway_history import FakeMessage

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
READER = Principal("ada", Role.ROLE_VIEWER)


class History:
    """A history that takes records."""

    def __init__(self, database: Database) -> None:
        self.database, self._offset = database, 0

    def take(self, topic: str, key: str, *messages: Message) -> None:
        """Records of one key; a verdict's key is its camera."""
        records = Records(self.database)
        with self.database.writing() as connection:
            batch = records.begin(connection)
            for message in messages:
                self._offset += 1
                record = FakeMessage(topic, 0, self._offset, key.encode(), to_json(message))
                records.take(batch, record)  # type: ignore[arg-type]
            records.end(batch)

    def unwatched(self, begin_h: float, end_h: float, now_h: float) -> list[tuple[str, str, float, float]]:
        """Stretches of a range: camera, reason, begin and end in minutes, all from `BEGIN_MS`."""
        with self.database.reading() as connection:
            found = shift(
                connection,
                READER,
                None,
                begin_ms=BEGIN_MS + round(begin_h * HOUR_MS),
                end_ms=BEGIN_MS + round(end_h * HOUR_MS),
                now_ms=BEGIN_MS + now_h * HOUR_MS,
            )
        return [told(one) for one in found.unwatched]


def told(one: Unwatched) -> tuple[str, str, float, float]:
    """A stretch in minutes from `BEGIN_MS`."""
    return one.camera, one.reason, (one.begin_ms - BEGIN_MS) / MINUTE_MS, (one.end_ms - BEGIN_MS) / MINUTE_MS


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    database = Database(f"sqlite:///{tmp_path}/history.db")
    database.migrate()
    made = History(database)
    # Five minutes of answers, and then nothing: windows slide by two seconds.
    made.take(VERDICTS.name, "gate", *(verdict("gate", window) for window in range(150)))
    yield made
    database.close()


def watch(**changes: object) -> Watch:
    return Watch(id="lying", version=1, question="Is anyone lying?", **changes)  # type: ignore[arg-type]


def test_a_camera_that_sends_nothing_more_is_not_watched_until_now(history: History) -> None:
    history.take(WATCHES.name, "lying", watch())
    ((camera, reason, begin, end),) = history.unwatched(-1, 4, now_h=3)
    assert (camera, reason, end) == ("gate", "unseen", 178.0), "the last two minutes are not decided yet"
    assert 5 <= begin <= 6
    # A range in which nothing came at all says so as well; before the first verdict nothing was asked.
    assert history.unwatched(1, 2, now_h=3) == [("gate", "unseen", 60.0, 120.0)]
    assert history.unwatched(-2, -1, now_h=3) == []


def test_a_question_that_nobody_asks_any_more_ends_with_its_last_verdict(history: History) -> None:
    assert history.unwatched(-1, 4, now_h=3) == []
    history.take(WATCHES.name, "lying", watch(cameras=["yard*"]))
    assert history.unwatched(-1, 4, now_h=3) == []


@pytest.mark.parametrize("days", [0, 7, 90], ids=["to the minute", "to the hour", "a quarter"])
def test_a_longer_range_has_the_same_silence_and_none_in_the_future(history: History, days: int) -> None:
    history.take(WATCHES.name, "lying", watch())
    for now_h in (0.5, 2.75):
        with history.database.reading() as connection:
            begin_ms, end_ms = BEGIN_MS - days * 24 * HOUR_MS, BEGIN_MS + 24 * HOUR_MS
            now_ms = BEGIN_MS + now_h * HOUR_MS
            whole = shift(connection, READER, None, begin_ms=begin_ms, end_ms=end_ms, now_ms=now_ms)
        found = whole.unwatched
        ((_, reason, begin, end),) = [told(one) for one in found]
        assert (reason, end) == ("unseen", now_h * 60 - 2)
        assert 5 <= begin <= 6
        assert [one.end_ms - one.begin_ms for one in found] == [one.time_ms for one in found]
        assert sum(hour.unwatched_ms for hour in whole.hours) == sum(one.time_ms for one in found)
        assert [lost for _, lost in whole.cameras.values()] == [sum(one.time_ms for one in found)]
        unset = [told(one) for one in whole.unset]
        assert unset == ([("gate", "unset", -days * 24 * 60.0, 0.0)] if days else [])


def test_a_paused_watch_is_named_as_the_reason(history: History) -> None:
    history.take(WATCHES.name, "lying", watch(disabled=True))
    ((_, reason, _, end),) = history.unwatched(0, 2, now_h=3)
    assert (reason, end) == ("paused", 120.0)


def test_a_camera_that_never_sent_anything_counts_from_when_it_was_added(history: History) -> None:
    history.take(WATCHES.name, "lying", watch(cameras=["dock"]))
    history.take(CAMERAS.name, "dock", Camera(id="dock", url="rtsp://192.0.2.7/live"))
    ((camera, reason, begin, end),) = history.unwatched(
        0, 24, now_h=4
    )  # fake records are an hour old by then
    assert (camera, reason, begin, end) == ("dock", "unseen", 60.0, 238.0)


def test_a_report_of_a_silent_time_does_not_say_that_everything_was_answered() -> None:
    report = ShiftReport(hours=[ReportHour(watched_s=50, unwatched_s=28_750)])
    assert "7 h 59 min of 8 h had no answer, summed over cameras and questions." in [
        sentence.text for sentence in sentences(report)
    ]


def test_a_question_that_came_later_than_its_camera_has_a_time_of_its_own(history: History) -> None:
    later = (verdict("gate", window, watch="bag") for window in range(90, 150))
    history.take(VERDICTS.name, "gate", *later)
    with history.database.reading() as connection:
        span = {"begin_ms": BEGIN_MS - HOUR_MS, "end_ms": BEGIN_MS + HOUR_MS // 12}
        found = shift(connection, READER, None, **span, now_ms=BEGIN_MS + HOUR_MS)
    assert [(one.watch, *told(one)[2:]) for one in found.unset] == [("", -60.0, 0.0), ("bag", 0.0, 3.0)]
