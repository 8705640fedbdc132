"""What a report and coverage measure answers against: when questions were asked, also while nothing came."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message

from lookout.services.gateway.history import queries
from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.records import Records
from lookout.services.gateway.history.shift import Shift, Unwatched, shift, shift_report
from lookout.services.gateway.history.shift_text import sentences
from lookout.services.gateway.history.tables import BUCKETS
from lookout.services.gateway.principal import Principal
from lookout.v1.access_pb2 import AuditEntry, Role
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.gateway_pb2 import ReportHour, ShiftReport
from lookout.v1.watches_pb2 import Watch
from lookout.wire import AUDIT, CAMERAS, ERASURES, VERDICTS, WATCHES, to_json
from tests.fleet.gateway_records import BEGIN_MS, verdict
from tests.unit.services.test_gateway_history import FakeMessage

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
READER = Principal("ada", Role.ROLE_VIEWER)
DOCK = Camera(id="dock", url="rtsp://192.0.2.7/live")


class History:
    """A history that takes records."""

    def __init__(self, database: Database) -> None:
        self.database, self._offset = database, -1

    def take(self, topic: str, key: str, *messages: Message | None, at_h: float = 1) -> None:
        """Records of one key, written in an hour from `BEGIN_MS`; a verdict's key is its camera."""
        records = Records(self.database)
        written_ms = BEGIN_MS + round(at_h * HOUR_MS)
        with self.database.writing() as connection:
            batch = records.begin(connection)
            for message in messages:
                self._offset += 1
                body = None if message is None else to_json(message)
                record = FakeMessage(topic, 0, self._offset, key.encode(), body, (), written_ms)
                records.take(batch, record)  # type: ignore[arg-type]
            records.end(batch)

    def shift(self, begin_h: float, end_h: float, now_h: float) -> Shift:
        """What was watched in a range, in hours from `BEGIN_MS`."""
        span = {"begin_ms": BEGIN_MS + round(begin_h * HOUR_MS), "end_ms": BEGIN_MS + round(end_h * HOUR_MS)}
        with self.database.reading() as connection:
            return shift(connection, READER, None, **span, now_ms=BEGIN_MS + now_h * HOUR_MS)

    def unwatched(self, begin_h: float, end_h: float, now_h: float) -> list[tuple[str, str, float, float]]:
        """Stretches of a range: camera, reason, begin and end in minutes, all from `BEGIN_MS`."""
        return [told(one) for one in self.shift(begin_h, end_h, now_h).unwatched]

    def of(self, camera: str, now_h: float = 6) -> list[tuple[str, float, float]]:
        """What was not watched of a camera: the watch, from when until when, in minutes from `BEGIN_MS`."""
        found = self.shift(-1, 24, now_h).unwatched
        return [(one.watch, *told(one)[2:]) for one in found if one.camera == camera]


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


def watch(identity: str = "lying", *, from_h: float = 0, **changes: object) -> Watch:
    """A watch that is asked from an hour on, counted from `BEGIN_MS`."""
    made = Watch(id=identity, version=1, question="Is anyone lying?", **changes)  # type: ignore[arg-type]
    made.active_from.FromMilliseconds(BEGIN_MS + round(from_h * HOUR_MS))
    return made


def audited(action: str, subject: str) -> AuditEntry:
    """An entry of the audit log."""
    return AuditEntry(action=action, subject=subject, camera=subject)


def test_a_camera_that_sends_nothing_more_is_not_watched_until_now(history: History) -> None:
    history.take(WATCHES.name, "lying", watch())
    ((camera, reason, begin, end),) = history.unwatched(-1, 4, now_h=3)
    assert (camera, reason, end) == ("gate", "unseen", 180.0), "until now, as long as it goes on"
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
        assert (reason, end) == ("unseen", now_h * 60)
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
    history.take(CAMERAS.name, "dock", DOCK)
    ((camera, reason, begin, end),) = history.unwatched(
        0, 24, now_h=4
    )  # fake records are an hour old by then
    assert (camera, reason, begin, end) == ("dock", "unseen", 60.0, 240.0)


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


def test_a_watch_made_during_an_outage_counts_from_when_it_was_made(history: History) -> None:
    history.take(WATCHES.name, "lying", watch())
    history.take(WATCHES.name, "bag", watch("bag", from_h=2))
    history.take(WATCHES.name, "yards", watch("yards", from_h=2, cameras=["yard*"]))
    history.take(WATCHES.name, "off", watch("off", from_h=2, disabled=True))
    assert history.of("gate") == [("bag", 120.0, 360.0), ("lying", 5.0 + 8 / 60, 360.0)]
    # It stays so when the outage is over, and nothing is counted of a watch that was soon answered.
    history.take(WATCHES.name, "quick", watch("quick", from_h=5))
    later = [
        verdict("gate", window, watch=name)
        for name, begin in [("bag", 9000), ("quick", 9030)]
        for window in range(begin, 10_000)
    ]
    history.take(VERDICTS.name, "gate", *later, at_h=6)
    assert [row for row in history.of("gate", now_h=5.56) if row[0] != "lying"] == [("bag", 120.0, 300.0)]


def test_a_camera_that_was_silent_before_its_first_verdict_counts_from_when_it_was_added(
    history: History,
) -> None:
    history.take(WATCHES.name, "lying", watch(from_h=-1))
    history.take(CAMERAS.name, "dock", DOCK, at_h=-0.5)
    history.take(VERDICTS.name, "dock", *(verdict("dock", window) for window in range(600, 1800)))
    assert history.of("dock", now_h=1) == [("lying", -30.0, 20.0)]


def test_a_camera_was_there_at_its_first_verdict_whenever_its_record_was_written(history: History) -> None:
    history.take(WATCHES.name, "bag", watch("bag", from_h=2))
    history.take(CAMERAS.name, "gate", Camera(id="gate", url="rtsp://192.0.2.7/live"), at_h=3)
    assert history.of("gate") == [("bag", 120.0, 360.0)]


def test_a_history_built_again_claims_nothing_of_what_kafka_no_longer_had(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/other.db")
    database.migrate()
    history = History(database)
    history.take(WATCHES.name, "lying", watch(from_h=-1))  # so the first verdict is not the topic's first
    history.take(CAMERAS.name, "gate", Camera(id="gate", url="rtsp://192.0.2.7/live"), at_h=-1)
    history.take(VERDICTS.name, "gate", *(verdict("gate", window) for window in range(1800)))
    assert history.of("gate", now_h=1) == []
    database.close()


def test_a_watch_that_is_saved_again_keeps_its_time_before(history: History) -> None:
    history.take(CAMERAS.name, "dock", DOCK, at_h=1)
    history.take(WATCHES.name, "lying", watch(cameras=["dock"]), watch(cameras=["dock"], from_h=3))
    assert history.of("dock") == [("lying", 60.0, 360.0)]
    # Paused, and on again; changed for a camera that it did not ask about.
    history.take(WATCHES.name, "lying", watch(disabled=True, from_h=4), watch(cameras=["dock"], from_h=5))
    assert history.of("dock") == [("lying", 60.0, 240.0), ("lying", 300.0, 360.0)]


def test_a_snooze_holds_and_what_was_planned_gives_way_to_what_came_instead(history: History) -> None:
    history.take(CAMERAS.name, "dock", DOCK, at_h=1)
    history.take(WATCHES.name, "lying", watch(cameras=["dock"]))
    history.take(WATCHES.name, "lying", watch(disabled=True, from_h=2), watch(cameras=["dock"], from_h=5))
    assert history.of("dock", now_h=4) == [("lying", 60.0, 120.0)]
    history.take(WATCHES.name, "lying", watch(cameras=["dock"], from_h=3))
    assert history.of("dock", now_h=4) == [("lying", 60.0, 120.0), ("lying", 180.0, 240.0)]
    history.take(WATCHES.name, "lying", watch(from_h=9), watch(cameras=["dock"], disabled=True, from_h=4))
    assert history.of("dock") == [("lying", 60.0, 120.0), ("lying", 180.0, 240.0)]


def test_a_watch_that_was_removed_in_between_was_not_asked_then(history: History) -> None:
    history.take(CAMERAS.name, "dock", DOCK, at_h=1)
    history.take(WATCHES.name, "lying", watch(cameras=["dock"]))
    history.take(WATCHES.name, "lying", None, at_h=2)
    assert history.of("dock") == [("lying", 60.0, 120.0)]
    history.take(WATCHES.name, "lying", watch(cameras=["dock"], from_h=3))
    assert history.of("dock") == [("lying", 60.0, 120.0), ("lying", 180.0, 360.0)]
    with history.database.reading() as connection:
        assert (
            len(queries.versions(connection, "lying")) == len(list(queries.authors(connection, "lying"))) == 2
        )


def test_a_corrected_address_keeps_the_time_before(history: History) -> None:
    history.take(WATCHES.name, "lying", watch(cameras=["dock"]))
    history.take(CAMERAS.name, "dock", DOCK, at_h=1)
    history.take(CAMERAS.name, "dock", Camera(id="dock", url="rtsp://192.0.2.8/live"), at_h=2)
    assert history.of("dock") == [("lying", 60.0, 360.0)]


def test_a_removed_camera_keeps_its_time_until_the_removal(history: History) -> None:
    history.take(WATCHES.name, "lying", watch())
    for camera in ("gate", "dock"):
        source = Camera(id=camera, url="rtsp://192.0.2.7/live")
        history.take(CAMERAS.name, camera, source, at_h=1)
        history.take(CAMERAS.name, camera, None, at_h=2)
    assert history.of("dock") == [("lying", 60.0, 120.0)]
    assert history.of("gate") == [("lying", 5.0 + 8 / 60, 120.0)]
    assert history.unwatched(3, 4, now_h=6) == []
    history.take(CAMERAS.name, "dock", DOCK, at_h=4)
    assert history.of("dock") == [("lying", 60.0, 120.0), ("lying", 240.0, 360.0)]
    # Who is heard after the removal publishes by itself.
    history.take(VERDICTS.name, "gate", *(verdict("gate", window) for window in range(9000, 9100)), at_h=6)
    (_, _, end) = history.of("gate", now_h=8)[-1]
    assert end == 480.0


def test_a_stretch_says_what_it_began_and_ended_with(history: History) -> None:
    history.take(WATCHES.name, "lying", watch())
    history.take(CAMERAS.name, "dock", DOCK, at_h=1)
    history.take(WATCHES.name, "bag", watch("bag", from_h=2, cameras=["dock"]))
    history.take(WATCHES.name, "bag", None, at_h=3)
    history.take(CAMERAS.name, "dock", None, at_h=4)
    history.take(CAMERAS.name, "dock", DOCK, at_h=5)

    def ends(begin_h: float, end_h: float, now_h: float) -> list[tuple[str, str, str, bool]]:
        found = history.shift(begin_h, end_h, now_h).unwatched
        return [(one.watch, one.began, one.ended, one.ongoing) for one in found if one.camera == "dock"]

    assert ends(-1, 24, now_h=6) == [
        ("bag", "watch-added", "watch-removed", False),
        ("lying", "camera-added", "camera-removed", False),
        ("lying", "camera-added", "", True),
    ]
    assert ends(1.5, 3.5, now_h=6) == [
        ("bag", "watch-added", "watch-removed", False),
        ("lying", "", "", False),
    ], "a range that ends before now says nothing of what came after"


def test_the_audit_log_says_what_compaction_removed(history: History) -> None:
    history.take(WATCHES.name, "lying", watch(cameras=["dock", "ramp", "lost"], from_h=3))
    history.take(CAMERAS.name, "dock", DOCK, at_h=3)  # its newest record
    for subject in ("dock", "ramp", "lost"):
        history.take(AUDIT.name, "", audited("camera.write", subject), at_h=1)
    history.take(AUDIT.name, "", audited("camera.remove", "ramp"), at_h=4)
    history.take(AUDIT.name, "", audited("watch.write", "lying"), at_h=2)
    assert history.of("dock") == [("lying", 120.0, 360.0)]
    assert history.of("ramp") == [("lying", 120.0, 240.0)]
    assert history.of("lost") == [], "nobody knows until when it was there"


def test_an_outage_reaches_until_now_and_what_is_not_decided_yet_is_none(history: History) -> None:
    history.take(WATCHES.name, "lying", watch())
    assert history.unwatched(0, 24, now_h=6.5 / 60) == [], "an answer may take two minutes"
    ((*_, begin, end),) = history.unwatched(0, 24, now_h=7.5 / 60)
    assert (begin, end) == (5 + 8 / 60, 7.5)


def test_the_time_before_a_camera_ends_where_its_first_verdict_begins(history: History) -> None:
    history.take(VERDICTS.name, "yard", *(verdict("yard", window) for window in range(23, 60)))
    found = history.shift(-1, 24, now_h=1)
    assert [told(one)[2:] for one in found.unset if one.camera == "yard"] == [(-60.0, 46 / 60)]
    assert [one for one in found.unwatched if one.camera == "yard"] == []
    with history.database.writing() as connection:
        connection.execute(BUCKETS.update().values(detail=None))  # as they become old
    assert history.shift(-1, 24, now_h=1).unset == found.unset


def test_whole_seconds_of_a_stretch_are_its_length(history: History) -> None:
    history.take(WATCHES.name, "lying", watch(cameras=["dock"]))
    history.take(CAMERAS.name, "dock", DOCK, at_h=1.000_1)
    with history.database.reading() as connection:
        span = BEGIN_MS + 30 * MINUTE_MS, BEGIN_MS + 90 * MINUTE_MS
        report = shift_report(connection, READER, "dock", *span)
    (unset,), (lost,) = report.unset, report.unwatched
    assert unset.end == lost.start
    for one in (unset, lost):
        assert one.seconds == one.end.seconds - one.start.seconds


def test_an_erased_camera_was_not_silent(history: History) -> None:
    history.take(WATCHES.name, "lying", watch())
    history.take(CAMERAS.name, "gate", Camera(id="gate", url="rtsp://192.0.2.7/live"))
    end_us = (BEGIN_MS + HOUR_MS) * 1000
    erasure = Erasure(id="e1", camera="gate", begin_us=0, end_us=end_us, requested_us=end_us, whole=True)
    history.take(ERASURES.name, "e1", erasure)
    assert history.of("gate") == []
