"""A back-test as a job says of an enabled watch what was committed, whatever happens to its parts."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lookout.models import TINY
from lookout.past.backtests.answers import hidden_by
from lookout.past.erasures import Fence
from lookout.recordings.analysis import Analyzer
from lookout.runtime.worker import load_settings
from lookout.services.recordings.past import PastParts
from lookout.services.recordings.settings import RecordingsSettings
from lookout.streams.chains import ChainRange
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.labels_pb2 import Label
from lookout.v1.recordings_pb2 import (
    BacktestAnswer,
    BacktestJob,
    RecordingAnswers,
    RecordingJob,
    RecordingOutcome,
    RecordingPart,
)
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.wire import RECORDING_PARTS, RECORDING_RESULTS, RECORDINGS, TOKENS, from_bytes
from tests.one_process_fleet import FleetLog, OneProcessFleet
from tests.unit.past.backtests.test_past_windows import CROWD, FALL, SAMPLING, STREAMS, incidents, run
from tests.unit.services.recordings_case import Services

STREAM = "key windows"


class World:
    """A fleet's past and the services of jobs."""

    def __init__(self, fleet: OneProcessFleet, analyzer: Analyzer, folder: Path) -> None:
        self.fleet, self.log = fleet, FleetLog(fleet)
        values = {
            "mode": "local",
            "model_dir": fleet.model,
            "key_every": fleet.settings.key_every,
            **SAMPLING,
        }
        settings = load_settings(RecordingsSettings, {}, **values)

        @contextmanager
        def log(partition: int) -> Iterator[FleetLog]:
            assert partition == 0
            yield self.log

        self.fence = Fence()
        past = PastParts(
            settings, analyzer, fleet.digest, fleet.client, log=log, hidden=lambda: hidden_by(self.fence)
        )
        end = len(fleet.topics[TOKENS.name])
        self.services = Services(analyzer, folder, past, {0: ChainRange(0, 0, end, 0)})

    def ask(self, watch: Watch, identity: str = "past", **fields: object) -> None:
        self.services.ask(RecordingJob(id=identity, backtest=BacktestJob(watch=watch, **fields)))  # type: ignore[arg-type]

    def outcomes(self) -> list[RecordingOutcome]:
        records = self.services.topics.records[RECORDING_RESULTS.name]
        return [from_bytes(record.value, RecordingOutcome) for record in records]

    def verdicts(self) -> dict[tuple[int, int], Verdict]:
        verdicts = [
            (stream.epoch, verdict)
            for outcome in self.outcomes()
            for stream in outcome.part.backtest.streams
            for verdict in stream.verdicts
        ]
        by_window = {(epoch, verdict.window): verdict for epoch, verdict in verdicts}
        assert len(by_window) == len(verdicts) or self.log.lowest  # no window belongs to two parts
        return by_window


@pytest.fixture(scope="module")
def fleet() -> Iterator[OneProcessFleet]:
    encoded, values = STREAMS[STREAM]
    fleet = run(encoded, [FALL], values)
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def analyzer(fleet: OneProcessFleet) -> Iterator[Analyzer]:
    with Analyzer(fleet.model) as model:
        yield model


@pytest.fixture
def world(
    fleet: OneProcessFleet, analyzer: Analyzer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> World:
    monkeypatch.setattr(
        "lookout.past.backtests.jobs.LEAST_RECORDS", 2
    )  # a part begins in the middle of a chain
    return World(fleet, analyzer, tmp_path)


def committed(fleet: OneProcessFleet) -> dict[tuple[int, int], Verdict]:
    return {(verdict.epoch, verdict.window): verdict for verdict in fleet.verdicts}


def same(past: dict[tuple[int, int], Verdict], expected: dict[tuple[int, int], Verdict]) -> None:
    assert past.keys() == expected.keys()
    for key, verdict in past.items():
        other = expected[key]
        assert (verdict.outcome, verdict.start, verdict.end) == (other.outcome, other.start, other.end)
        assert verdict.p_yes == pytest.approx(other.p_yes, abs=1e-4)


def facts(answer: BacktestAnswer) -> list[tuple[int, int, str]]:
    return [
        (past.opened.ToMilliseconds(), past.end.ToMilliseconds(), past.reason) for past in answer.incidents
    ]


def test_a_back_test_of_an_enabled_watch_says_what_was_committed(world: World) -> None:
    world.ask(FALL)
    parts = world.services.topics.records[RECORDING_PARTS.name]
    assert len(parts) > 4
    random.Random(1).shuffle(parts)
    world.services.work()
    same(world.verdicts(), committed(world.fleet))
    answers = world.services.answers("past")
    assert (answers.state, answers.done) == (RecordingAnswers.STATE_DONE, len(parts))
    assert facts(answers.backtest) == incidents(world.fleet, FALL) != []
    assert answers.backtest.incidents[0].evidence[0].HasField("record")
    assert 0 < answers.backtest.cost.flops < answers.backtest.cost.flops_dense
    assert not answers.backtest.unanswered
    assert not answers.backtest.replanned


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in STREAMS if name != STREAM])
def test_other_pasts_are_committed_so_too(
    name: str, analyzer: Analyzer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookout.past.backtests.jobs.LEAST_RECORDS", 2)
    encoded, values = STREAMS[name]
    fleet = run(encoded, [FALL], values)
    world = World(fleet, analyzer, tmp_path)
    world.ask(FALL)
    world.services.work()
    same(world.verdicts(), committed(fleet))
    assert facts(world.services.answers("past").backtest) == incidents(fleet, FALL)
    fleet.close()


def test_a_part_of_the_past_has_the_answers_of_the_whole(world: World) -> None:
    later = [verdict for verdict in world.fleet.verdicts if 7 <= verdict.window < 10]
    until_ms = later[-1].end.ToMilliseconds() + 1
    job = BacktestJob(since=later[0].end)
    job.until.FromMilliseconds(until_ms)
    world.ask(FALL, since=job.since, until=job.until)
    world.services.work()
    same(world.verdicts(), {(verdict.epoch, verdict.window): verdict for verdict in later})


def test_cameras_that_the_watch_does_not_name_are_not_asked(world: World) -> None:
    watch = Watch(id="fall", version=1, question=FALL.question, cameras=["yard-*"])
    world.ask(watch)
    world.services.work()
    answers = world.services.answers("past")
    assert answers.state == RecordingAnswers.STATE_DONE
    assert (world.verdicts(), answers.backtest.cameras) == ({}, 0)


def test_a_job_reads_cameras_of_its_own_tenant(world: World) -> None:
    (camera,) = {verdict.camera for verdict in world.fleet.verdicts}  # of the tenant that is not named
    watch = Watch(id="fall", version=1, question=FALL.question, cameras=[camera])
    for identity, named, others in (("a", watch, [camera]), ("b", FALL, [])):
        job = RecordingJob(id=identity, tenant="acme", backtest=BacktestJob(watch=named))
        world.services.ask(job)
        world.services.work()
        answers = world.services.answers(identity)
        assert answers.state == RecordingAnswers.STATE_DONE
        assert (world.verdicts(), list(answers.backtest.other_tenants)) == ({}, others)
    world.services.ask(RecordingJob(id="c", tenant="default", backtest=BacktestJob(watch=watch)))
    world.services.work()
    same(world.verdicts(), committed(world.fleet))


def test_a_job_of_one_tenant_has_no_watch_of_another(world: World) -> None:
    watch = Watch(id="fall", question="Is it?", tenant="other")
    world.services.ask(RecordingJob(id="past", tenant="acme", backtest=BacktestJob(watch=watch)))
    assert world.services.answers("past").state == RecordingAnswers.STATE_REFUSED
    assert "tenant 'other': a job of tenant 'acme' may only read" in world.services.answers("past").reason


def test_records_that_expire_while_the_job_runs_are_counted(world: World) -> None:
    world.ask(FALL)
    parts = world.services.topics.records[RECORDING_PARTS.name]
    world.services.parts.handle(parts[0])
    world.log.lowest = 6
    for record in parts[1:]:
        world.services.parts.handle(record)
    world.services.reduce.catch_up(RECORDING_RESULTS.name)
    answer = world.services.answers("past").backtest
    counts = {count.outcome: count.windows for count in answer.windows}
    assert counts["expired"] > 0
    assert sum(counts.values()) == len(world.fleet.verdicts)
    expected = committed(world.fleet)
    for key, verdict in world.verdicts().items():
        if verdict.HasField("p_yes") and expected[key].since_key == 0:
            assert verdict.p_yes == pytest.approx(expected[key].p_yes, abs=1e-4)


def test_a_camera_that_is_erased_while_it_is_asked_is_not_in_the_answer(world: World) -> None:
    world.ask(FALL)
    parts = world.services.topics.records[RECORDING_PARTS.name]
    world.services.parts.handle(parts[0])
    erased = Erasure(camera="cam", begin_us=0, end_us=2**53)
    world.fence = Fence([erased])
    for record in parts[1:]:
        world.services.parts.handle(record)
    first, *others = [outcome.part.backtest for outcome in world.outcomes() if outcome.HasField("part")]
    assert first.streams
    assert not any(stream.verdicts for past in others for stream in past.streams)
    world.services.fence = world.fence  # the first part was answered before: it is left out at the end
    world.services.reduce.catch_up(RECORDING_RESULTS.name)
    answer = world.services.answers("past").backtest
    assert (answer.cameras, list(answer.incidents)) == (0, [])


def test_a_cancelled_back_test_says_what_was_answered(world: World) -> None:
    world.ask(FALL)
    parts = world.services.topics.records[RECORDING_PARTS.name]
    for record in parts[:2]:
        world.services.parts.handle(record)
    cancelled = RecordingJob(id="past", backtest=BacktestJob(watch=FALL), cancelled=True)
    world.services.ask(cancelled)
    world.services.cancelled.add("past")
    for record in parts[2:]:
        world.services.parts.handle(record)
    world.services.reduce.catch_up(RECORDING_RESULTS.name)
    answers = world.services.answers("past")
    assert (answers.state, answers.done) == (RecordingAnswers.STATE_CANCELLED, 2)
    assert answers.backtest.cameras == 1


def test_cancelling_ends_a_part_between_its_windows(world: World) -> None:
    world.ask(FALL)
    calls = iter([False, False, True])
    world.services.parts_handler._cancelled = lambda _: next(calls)
    world.services.parts.handle(world.services.topics.records[RECORDING_PARTS.name][0])
    assert world.outcomes()[-1].part.reason == "cancelled"


def test_a_second_back_test_of_the_same_name(world: World) -> None:
    world.ask(FALL)
    world.ask(FALL)
    world.ask(CROWD)
    assert [letter.reason for letter in world.services.plan.letters] == ["job-exists"]
    world.services.work()
    assert facts(world.services.answers("past").backtest) == incidents(world.fleet, FALL)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (BacktestJob(), "watch: id"),
        (BacktestJob(watch=Watch(id="a", question=" ")), "the question is empty"),
        (BacktestJob(watch=Watch(id="a", question="Is it? " * 1000)), "questions? .* characters|question"),
        (BacktestJob(watch=Watch(id="a", question="Is it?", cameras=[""])), "cameras"),
        (BacktestJob(watch=Watch(id="a", question="Is it? [0..5]")), "a condition after them"),
    ],
)
def test_a_request_that_cannot_be_followed_is_answered_so(world: World, job: BacktestJob, why: str) -> None:
    world.services.ask(RecordingJob(id="past", backtest=job))
    world.services.work()
    answers = world.services.answers("past")
    assert answers.state == RecordingAnswers.STATE_REFUSED
    assert re.search(why, answers.reason), answers.reason


def test_answers_that_the_model_cannot_write_are_refused_once(world: World) -> None:
    world.services.plan_handler._folder = TINY
    world.ask(Watch(id="gate", question="Is it? [ajar, shut] when state = shut"))
    world.services.work()
    answers = world.services.answers("past")
    assert answers.state == RecordingAnswers.STATE_REFUSED
    assert "no tokens for the answer “ajar”" in answers.reason
    assert not world.services.topics.records.get(RECORDING_PARTS.name)


def test_a_time_of_which_kafka_has_nothing_is_refused(
    fleet: OneProcessFleet, analyzer: Analyzer, tmp_path: Path
) -> None:
    services = Services(analyzer, tmp_path)
    services.ask(RecordingJob(id="past", backtest=BacktestJob(watch=FALL)))
    services.work()
    answers = services.answers("past")
    assert answers.state == RecordingAnswers.STATE_REFUSED
    assert "tokens.v1 has no records of that time" in answers.reason


def test_a_service_without_the_past_says_so(
    fleet: OneProcessFleet, analyzer: Analyzer, tmp_path: Path
) -> None:
    services = Services(analyzer, tmp_path, None, {0: ChainRange(0, 0, 5, 0)})
    services.ask(RecordingJob(id="past", backtest=BacktestJob(watch=FALL)))
    services.work()
    assert services.answers("past").backtest.unanswered[0].reason == "this service does not run back-tests"


def test_labels_are_scored_over_all_parts(world: World) -> None:
    first, *_ = committed(world.fleet).values()
    (opened,) = incidents(world.fleet, FALL)
    right = Label(camera="cam", watch="fall", incident="a", right=True)
    right.start.FromMilliseconds(opened[0])
    right.end.FromMilliseconds(opened[1])
    wrong = Label(camera="cam", watch="fall", incident="b", start=first.start, end=first.end)
    elsewhere = Label(camera="yard", watch="fall", incident="c", start=first.start, end=first.end)
    world.ask(FALL, labels=[elsewhere, right, wrong])
    parts = world.services.topics.records[RECORDING_PARTS.name]
    assert not from_bytes(parts[0].value, RecordingPart).backtest.job.labels
    world.services.work()
    answer = world.services.answers("past").backtest
    assert [(score.incident, score.right, score.HasField("score")) for score in answer.labels] == [
        ("c", False, False),
        ("a", True, True),
        ("b", False, True),
    ]
    assert answer.labels[1].score >= FALL.rule.threshold == answer.threshold
    assert answer.labels[2].score == pytest.approx(first.p_yes, abs=1e-4)


def test_labels_of_an_erased_time_are_in_no_answer(world: World) -> None:
    first, *_ = committed(world.fleet).values()
    world.ask(FALL, labels=[Label(camera="cam", incident="a", start=first.start, end=first.end)])
    world.services.fence = Fence([Erasure(camera="cam", begin_us=0, end_us=2**53)])
    world.services.work()
    assert not world.services.answers("past").backtest.labels


def test_a_part_that_is_begun_again_has_the_same_outcome(world: World) -> None:
    """Its worker was killed between the answer and the commit, or a second worker answered as well."""
    world.ask(FALL)
    record = world.services.topics.records[RECORDING_PARTS.name][0]
    world.services.parts.handle(record)
    world.services.work()
    results = [outcome.part for outcome in world.outcomes() if outcome.part.HasField("backtest")]
    first, again = [part for part in results if part.number == from_bytes(record.value, RecordingPart).number]
    assert list(first.backtest.streams) == list(again.backtest.streams)
    assert first.backtest.cost.flops == again.backtest.cost.flops
    answers = world.services.answers("past")
    assert answers.state == RecordingAnswers.STATE_DONE
    assert facts(answers.backtest) == incidents(world.fleet, FALL)


@pytest.mark.parametrize(
    "watch",
    [
        b'{"id":"a","version":1,"question":"Is it?","rule":{"threshold":' + b"9" * 5000 + b"}}",
        b'{"id":"a","version":1,"question":"Is it?","rule":{"threshold":0.' + b"0" * 5000 + b"1}}",
        b'{"id":"a","version":1,"question":"Is it?","rule":{"threshold":NaN}}',
        b'{"id":"a","version":1,"question":"' + b"a" * (1 << 20) + b'"}',
        b'{"id":"a","version":1,"question":"Is it?","rule":{"k":65,"n":65}}',
        b"[]",
    ],
)
def test_a_strange_watch_is_answered_and_never_asked(world: World, watch: bytes) -> None:
    world.services.topics.add(RECORDINGS.name, "past", b'{"id":"past","backtest":{"watch":' + watch + b"}}")
    world.services.plan.catch_up(RECORDINGS.name)
    world.services.work()
    answers = world.services.answers("past")
    if b"0.000" in watch:  # zero in double precision: the default threshold
        assert answers.state == RecordingAnswers.STATE_DONE
        return
    assert answers.state == RecordingAnswers.STATE_REFUSED
    assert len(answers.reason) <= 1000
    assert RECORDING_PARTS.name not in world.services.topics.records
