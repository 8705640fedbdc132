"""What a week of a hundred cameras needs of a job: parts that a record holds, and little memory."""

from __future__ import annotations

import random

import pytest

from lookout.past.backtests import Backtest
from lookout.past.backtests.answers import CameraWindows, answer_of
from lookout.past.backtests.jobs import MOST_BYTES, MOST_RECORDS, _fitting, plan_backtest
from lookout.recordings.jobs import JobError
from lookout.rules import Outcome, Rule, WatchVerdict
from lookout.streams.chains import ChainRange
from lookout.v1.recordings_pb2 import (
    BacktestJob,
    BacktestOutcome,
    PartOutcome,
    PastStream,
    RecordingJob,
    RecordingPlan,
)
from lookout.v1.verdicts_pb2 import Evidence, Verdict
from lookout.v1.watches_pb2 import Rule as RuleMessage, Watch
from lookout.wire.limits import JOB_INCIDENTS, JOB_PARTS

WATCH = Watch(id="w", version=1, question="Is anyone there?", rule=RuleMessage(threshold=0.5))


def job() -> RecordingJob:
    return RecordingJob(id="week", backtest=BacktestJob(watch=WATCH))


def planned(records: int, partitions: int = 4) -> RecordingPlan:
    """A plan over as many records, evenly in some partitions."""
    share = records // partitions
    ranges = {place: ChainRange(place, 0, share, 0) for place in range(partitions)}
    return plan_backtest(job(), ranges, now_ms=0)


def answered(window: int, p_yes: float, *, epoch: int = 0, evidence: int = 0) -> Verdict:
    """A window of ten seconds, two seconds behind the one before."""
    verdict = Verdict(window=window, epoch=epoch, p_yes=p_yes, outcome=Verdict.OUTCOME_ANSWERED)
    verdict.start.FromSeconds(1_700_000_000 + 2 * window)
    verdict.end.FromSeconds(1_700_000_010 + 2 * window)
    verdict.evidence.extend(Evidence(row=row) for row in range(evidence))
    return verdict


def test_a_week_of_a_hundred_cameras_is_one_job() -> None:
    for stride_s in (8, 2):
        plan = planned(100 * 7 * 86_400 // stride_s)
        assert plan.parts <= JOB_PARTS
        assert max(part.stop - part.first for part in plan.past) <= MOST_RECORDS
    assert planned(7_560_000).parts < JOB_PARTS // 2 + 4


def test_what_parts_cannot_hold_is_refused_before_anything_is_computed() -> None:
    with pytest.raises(
        JobError, match=r"8000 parts \(80000000 records .* the limit of 4096; divide the time"
    ):
        planned(80_000_000)


@pytest.mark.parametrize(
    ("since_s", "why"),
    [
        (1_700_000_000, "may be past their retention"),
        (1_900_000_000, "since: 2030-03-17T17:46:40Z is in the"),
    ],
)
def test_a_time_without_records_is_refused_with_its_reason(since_s: int, why: str) -> None:
    asked = job()
    asked.backtest.since.FromSeconds(since_s)
    with pytest.raises(JobError, match=why):
        plan_backtest(asked, {}, now_ms=1_800_000_000_000)


def test_a_record_holds_the_largest_part() -> None:
    verdicts = [answered(1_000_000 + window, 0.4) for window in range(MOST_RECORDS)]
    for verdict in verdicts:
        verdict.activity, verdict.activity_rows, verdict.activity_cols = bytes(32), 16, 16
    outcome = BacktestOutcome(streams=[PastStream(camera="yard", epoch=1, verdicts=verdicts)])
    assert _fitting(outcome).ByteSize() <= MOST_BYTES


def test_the_strongest_windows_keep_their_pictures() -> None:
    draw = random.Random(1)
    verdicts = [answered(window, draw.random(), evidence=3) for window in range(MOST_RECORDS)]
    for verdict in verdicts:
        for frame in verdict.evidence:
            frame.record.topic, frame.record.offset = "frames.v1", verdict.window
            frame.time.CopyFrom(verdict.end)
    outcome = BacktestOutcome(streams=[PastStream(camera="yard", epoch=1, verdicts=verdicts)])
    assert outcome.ByteSize() > MOST_BYTES
    fitted = _fitting(outcome)
    assert MOST_BYTES - 500 < fitted.ByteSize() <= MOST_BYTES
    shown = [verdict.p_yes for verdict in fitted.streams[0].verdicts if verdict.evidence]
    others = [verdict.p_yes for verdict in fitted.streams[0].verdicts if not verdict.evidence]
    assert len(shown) + len(others) == MOST_RECORDS
    assert min(shown) >= max(others)


def test_windows_come_in_their_order_once() -> None:
    draw, own = random.Random(2), CameraWindows()
    rows = [(epoch, window) for epoch in (3, 17) for window in range(40)] * 2
    draw.shuffle(rows)
    seen: dict[tuple[int, int], Verdict] = {}
    for place, (epoch, window) in enumerate(rows):
        verdict = answered(window, place / 100, epoch=epoch)
        if draw.random() < 0.5:
            verdict.ClearField("outcome")
        own.add(verdict)
        if (epoch, window) not in seen or not seen[epoch, window].outcome:
            seen[epoch, window] = verdict
    assert list(own.rising()) == [verdict for _, verdict in sorted(seen.items())]


def test_an_answer_names_so_many_incidents_and_counts_all() -> None:
    rule, past = Rule(threshold=0.5), Backtest(Rule(threshold=0.5), most_incidents=2)
    for window in range(10):
        p_yes = 0.9 * (window % 2)
        past.add(
            WatchVerdict(
                "yard", 1, window, "w", 1, Outcome.ANSWERED, p_yes, 2000 * window, 2000 * window + 2000, rule
            )
        )
    assert (len(past.incidents), past.opened) == (2, 5)
    assert [incident.reason for incident in past.incidents] == ["cleared", "cleared"]
    assert past.incidents_a_camera_day == 5 * 86_400 / 20


def test_an_answer_with_every_window_an_incident_is_bounded() -> None:
    plan = planned(400, partitions=1)
    windows = 2 * JOB_INCIDENTS + 100
    verdicts = [answered(window, 0.9 * (window % 2)) for window in range(windows)]
    past = BacktestOutcome(streams=[PastStream(camera="yard", epoch=1, verdicts=verdicts)])
    answer = answer_of(plan, lambda numbers: [PartOutcome(number=numbers[0], backtest=past)])
    assert len(answer.incidents) == JOB_INCIDENTS
    assert answer.incidents_total == windows // 2
