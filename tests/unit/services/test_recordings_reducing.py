"""Parts of jobs take turns, in whatever order their outcomes come and whatever is lost in between."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given, strategies as st

from lookout.recordings.jobs import unanswered
from lookout.runtime.worker import Record
from lookout.services.recordings.quotas import RunningJobs
from lookout.services.recordings.reducing import ReduceHandler, _checkpoint
from lookout.v1.recordings_pb2 import (
    BacktestJob,
    BacktestPart,
    PartSpan,
    PlannedRecording,
    RecordingAnswers,
    RecordingJob,
    RecordingOutcome,
    RecordingPart,
    RecordingPlan,
)
from lookout.wire import ANSWERS, RECORDING_PARTS, RECORDING_RESULTS, from_bytes, from_json
from tests.unit.services.recordings_case import PARTITIONS, FakeTable, FakeTopics, Running

MOST = 4


def span(number: int) -> PartSpan:
    return PartSpan(number=number)


def planned(job: str, *parts: int, tenant: str = "") -> RecordingPlan:
    """The plan of a job about recordings of so many parts."""
    recordings = [
        PlannedRecording(
            uri=f"/{place}", mark="m", parts=size, spans=[PartSpan(number=n) for n in range(size)]
        )
        for place, size in enumerate(parts)
    ]
    request = RecordingJob(id=job, uris=["/"], questions=["Is it?"], tenant=tenant)
    return RecordingPlan(job=request, recordings=recordings, parts=sum(parts))


class World:
    """The collector of outcomes, and workers that answer parts without reading them."""

    def __init__(self, most_parts: int = MOST) -> None:
        self.topics = FakeTopics()
        handler = ReduceHandler(
            self.topics, partitions=PARTITIONS, most_parts=most_parts, clock=lambda: 1_700_000_000.0
        )
        self.reduce = Running(handler, self.topics)
        handler._running_jobs = RunningJobs(FakeTable(self.reduce))
        self.begun = 0

    def plan(self, plan: RecordingPlan) -> None:
        value = RecordingOutcome(job=plan.job.id, plan=plan).SerializeToString()
        self.topics.add(RECORDING_RESULTS.name, plan.job.id, value)
        self.collect()

    def collect(self) -> None:
        self.reduce.catch_up(RECORDING_RESULTS.name)

    def new_parts(self) -> list[Record]:
        """Parts that were written since the last call."""
        begun, records = self.begun, self.topics.records.get(RECORDING_PARTS.name, [])
        self.begun = len(records)
        return records[begun:]

    def answer(self, record: Record, place: int | None = None) -> None:
        """The outcome of a part."""
        part = from_bytes(record.value, RecordingPart)
        outcome = RecordingOutcome(
            job=part.job,
            part=unanswered(part, "not read"),
            place=record.partition if place is None else place,
        )
        self.topics.add(RECORDING_RESULTS.name, part.job, outcome.SerializeToString())

    def answers(self, job: str) -> RecordingAnswers:
        records = [record for record in self.topics.records[ANSWERS.name] if record.camera == job]
        return from_json(records[-1].value, RecordingAnswers)

    def written(self) -> Counter[str]:
        return Counter(record.camera for record in self.topics.records.get(RECORDING_PARTS.name, []))


def test_a_small_job_does_not_wait_for_a_large_one() -> None:
    """Workers take parts in the order in which they were written."""
    world = World()
    world.plan(planned("large", 4000))
    waiting = deque(world.new_parts())
    for _ in range(50):
        world.answer(waiting.popleft())
        world.collect()
        waiting.extend(world.new_parts())
    world.plan(planned("small", 1))
    waiting.extend(world.new_parts())
    for _ in range(MOST + 1):
        world.answer(waiting.popleft())
        world.collect()
        waiting.extend(world.new_parts())
    assert world.answers("small").state == RecordingAnswers.STATE_DONE
    assert world.answers("large").state == RecordingAnswers.STATE_RUNNING


def test_a_fast_worker_gets_more_parts() -> None:
    world = World(PARTITIONS)
    world.plan(planned("job", 40))
    first, *slow = world.new_parts()
    for _ in range(20):
        world.answer(first)
        world.collect()
        (following,) = world.new_parts()
        assert following.partition == first.partition
        first = following
    assert {record.partition for record in (first, *slow)} == set(range(PARTITIONS))


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(1, 6),
    st.data(),
)
def test_every_part_is_written_once_and_few_at_a_time(
    sizes: list[list[int]], most: int, data: st.DataObject
) -> None:
    """The collector loses its state before every record; outcomes come in any order, some twice."""
    world = World(most)
    jobs = {f"job-{number}": planned(f"job-{number}", *parts) for number, parts in enumerate(sizes)}
    for plan in jobs.values():
        world.plan(plan)
    waiting = world.new_parts()
    begun = len(waiting)  # the first job had all places to itself
    while waiting:
        record = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        for _ in range(data.draw(st.integers(1, 2))):
            world.answer(record, data.draw(st.sampled_from([record.partition, 10**6])))
        world.collect()
        world.reduce.tick(record.camera.partition("/")[0], 0.0)
        waiting += world.new_parts()
        assert len(waiting) <= max(most, len(jobs)) + begun
        begun = min(begun, len(waiting))
    expected = {f"{job}/{number}" for job, plan in jobs.items() for number in range(plan.parts)}
    assert world.written() == dict.fromkeys(expected, 1)
    for job, plan in jobs.items():
        answers = world.answers(job)
        assert (answers.state, answers.done) == (RecordingAnswers.STATE_DONE, plan.parts)
        assert [len(recording.parts) for recording in answers.recordings] == list(sizes[int(job[4:])])


def test_parts_of_an_ended_job_are_not_written() -> None:
    world = World()
    world.plan(planned("job", 10))
    first, *others = world.new_parts()
    cancelled = RecordingOutcome(job="job", cancelled=True).SerializeToString()
    world.topics.add(RECORDING_RESULTS.name, "job", cancelled)
    for record in (first, *others):
        world.answer(record)
    world.collect()
    assert world.reduce.tick("job", 0.0) is None
    assert world.new_parts() == []
    assert world.answers("job").state == RecordingAnswers.STATE_CANCELLED


@pytest.mark.parametrize("backtest", [False, True])
def test_a_job_of_an_earlier_release_has_its_parts(backtest: bool) -> None:
    """Its plan wrote them; the collector only counts."""
    plan = planned("job", 3)
    plan.recordings[0].ClearField("spans")
    if backtest:
        plan.job.backtest.CopyFrom(BacktestJob())
    world = World()
    world.plan(plan)
    assert world.new_parts() == []
    for number in range(3):
        part = RecordingPart(job="job", number=number)
        world.answer(Record(RECORDING_PARTS.name, 0, number, f"job/{number}", part.SerializeToString()))
    world.collect()
    assert world.answers("job").done == 3


def test_a_job_that_an_earlier_release_left_without_parts_gets_them_in_time() -> None:
    world = World()
    plan = planned("job", 6)
    world.plan(plan)
    world.topics.records[RECORDING_PARTS.name].clear()
    world.new_parts()
    state = world.reduce.handler.load("job", world.reduce.checkpoints["job"])
    state.sent = 0
    world.reduce.checkpoints["job"].checkpoint.CopyFrom(_checkpoint(state))
    assert world.reduce.tick("job", 0.0) is not None
    assert [record.camera for record in world.new_parts()] == [f"job/{number}" for number in range(MOST)]


def test_parts_of_a_back_test_are_those_of_its_plan() -> None:
    request = RecordingJob(id="past", backtest=BacktestJob())
    request.backtest.watch.question = "Is it?"
    request.backtest.labels.add(camera="gate")
    past = [BacktestPart(partition=number % 2, first=number, stop=number + 1) for number in range(3)]
    world = World()
    world.plan(RecordingPlan(job=request, parts=3, partition_parts=[2, 1], past=past))
    parts = [from_bytes(record.value, RecordingPart) for record in world.new_parts()]
    assert [part.number for part in parts] == [0, 1, 2]
    assert [(part.backtest.partition, part.backtest.first) for part in parts] == [(0, 0), (1, 1), (0, 2)]
    assert {part.backtest.job.watch.question for part in parts} == {"Is it?"}
    assert not any(part.backtest.job.labels for part in parts)


def test_the_jobs_of_a_tenant_share_its_places() -> None:
    """Each of ten jobs of one tenant has one part at a time; another tenant has as many places as all ten."""
    world = World(10)
    for number in range(10):
        world.plan(planned(f"many-{number}", 50))
    world.plan(planned("alone", 500, tenant="acme"))
    waiting = deque(world.new_parts())
    for _ in range(200):
        world.answer(waiting.popleft())
        world.collect()
        waiting.extend(world.new_parts())
    running = Counter(record.camera.partition("/")[0] for record in waiting)
    assert running == {"alone": 10} | {f"many-{number}": 1 for number in range(10)}
    cancelled = [f"many-{number}" for number in range(9)]
    for job in cancelled:
        value = RecordingOutcome(job=job, cancelled=True).SerializeToString()
        world.topics.add(RECORDING_RESULTS.name, job, value)
    world.collect()
    world.reduce.tick("many-9", 0.0)  # places of jobs that ended are the others'
    assert len(world.new_parts()) == 9
