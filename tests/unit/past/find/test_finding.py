"""A search over a rendered world, against asking every window by the replay of back-tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench.find_shown import shows
from lookout.models import DEMO_QUESTIONS, ListedQuestion
from lookout.models.windows import StrideBlock
from lookout.past.backtests import PastWindows
from lookout.past.find.clauses import clauses_of
from lookout.past.find.finding import Finder, SpanAnswer
from lookout.past.find.spans import PastSpan
from lookout.past.find.types import FindEvent, FindQuestion, Hit
from lookout.runtime.store import LineageBrokenError, StoreError
from lookout.runtime.tenants import TenantUsage, read_quotas
from lookout.streams.chains import EpochRecords, PastScope
from lookout.v1.memory_pb2 import FindProgress, FindSummary
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Rule, Watch
from tests.find_world import (
    START_US,
    FolderMemory,
    Spec,
    World,
    WorldRecords,
    moments,
    past_windows,
)

pytestmark = pytest.mark.slow

LYING, VEHICLE, PERSON = (DEMO_QUESTIONS[name] for name in ("lying", "vehicle", "person"))
MINUTE_US = 60_000_000
REMEMBERED = 15
"""Windows of `half` that are in a chapter."""


@cache
def world() -> World:
    """Somebody falls in front of `ward`, `dark` and `half`; `dark` has no memory, `half` of half a minute."""
    made = World(Path(tempfile.mkdtemp()))
    made.film(Spec("ward", "room", 5, 2, {1: "lying"}))
    made.film(Spec("yard", "carpark", 6, 2, {1: "vehicle"}))
    made.film(Spec("dark", "room", 8, 1, {0: "lying"}), remembered=range(0))
    made.film(Spec("half", "doorway", 9, 1, {0: "lying"}), remembered=range(REMEMBERED))
    return made


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    """Close the world's chapters at the end."""
    yield
    world().folder.close()
    for cached in (world, truth, searched):
        cached.cache_clear()


@cache
def truth(question: str, camera: str) -> dict[int, Verdict]:
    """Every window of a camera, asked by the replay of a back-test."""
    watch = Watch(id="truth", version=1, question=question, rule=Rule(threshold=0.5))
    epoch, scope = world().cameras[camera].epoch, PastScope(cameras=(camera,))
    return {past.verdict.window: past.verdict for past in past_windows(world()).verdicts(epoch, watch, scope)}


def happened(question: str, camera: str) -> list[tuple[int, int]]:
    """The moments of a camera by the truth: first and last window."""
    return moments({index: verdict.p_yes for index, verdict in truth(question, camera).items()})


def finder(memory: FolderMemory | None = None, records: WorldRecords | None = None) -> Finder:
    return Finder(memory or FolderMemory(world()), records or WorldRecords(world()), past_windows(world()))


def kept(events: Sequence[FindEvent]) -> list[Hit]:
    """The hits that stand at the end."""
    hits: dict[int, Hit] = {}
    for event in events:
        if isinstance(event, Hit):
            hits = {number: hit for number, hit in hits.items() if number not in event.merged}
            hits[event.number] = event
    return list(hits.values())


def summary(events: Sequence[FindEvent]) -> FindSummary:
    last = events[-1]
    assert isinstance(last, FindSummary)
    assert not any(isinstance(event, FindSummary) for event in events[:-1])
    return last


@cache
def searched(question: str) -> tuple[FindEvent, ...]:
    return tuple(finder().find(FindQuestion(question)))


def kinds(found: FindSummary, camera: str) -> set[str]:
    return {entry.kind for entry in found.not_searched if entry.camera == camera}


def reasons(found: FindSummary, camera: str) -> str:
    return "; ".join(entry.reason for entry in found.not_searched if entry.camera == camera)


@pytest.mark.parametrize("question", [pytest.param(LYING, marks=pytest.mark.long), VEHICLE])
def test_a_hit_has_the_answer_of_asking_every_window(question: str) -> None:
    hits = kept(searched(question))
    assert hits
    for hit in hits:
        expected = truth(question, hit.camera)[hit.verdict.window]
        assert hit.p_yes == pytest.approx(expected.p_yes, abs=1e-4)
        assert (hit.verdict.basis, hit.verdict.since_key) == (expected.basis, expected.since_key)
        assert hit.verdict.cost.flops_prefill == expected.cost.flops_prefill
        assert [own.time for own in hit.verdict.evidence] == [own.time for own in expected.evidence]
        assert hit.begin_us <= expected.start.ToMicroseconds() < expected.end.ToMicroseconds() <= hit.end_us


@pytest.mark.parametrize(("question", "name"), [(LYING, "lying"), (VEHICLE, "vehicle")])
def test_the_picture_of_a_hit_shows_what_was_asked_for(question: str, name: str) -> None:
    for hit in kept(searched(question)):
        assert hit.begin_us <= hit.picture_us <= hit.end_us
        assert shows(world().cameras[hit.camera].spec, name, hit.picture_us - START_US)


@pytest.mark.parametrize("question", [LYING, VEHICLE])
def test_every_moment_that_memory_covers_is_one_hit(question: str) -> None:
    hits = kept(searched(question))
    for camera in ("ward", "yard"):
        windows = [hit.verdict.window for hit in hits if hit.camera == camera]
        expected = happened(question, camera)
        assert len(windows) == len(expected)
        for first, last in expected:
            assert any(first <= window <= last for window in windows)
    assert sorted(summary(searched(question)).hits) == sorted(hit.number for hit in hits)


@pytest.mark.parametrize(("question", "camera"), [(LYING, "ward")])
def test_a_moment_is_first_shown_by_its_key_window(question: str, camera: str) -> None:
    """The spans that were asked first contain one: it is the cheapest way to say that the moment is there."""
    ((first, last),) = happened(question, camera)
    assert any(truth(question, camera)[index].since_key == 0 for index in range(first, last + 1))
    hit = next(event for event in searched(question) if isinstance(event, Hit) and event.camera == camera)
    assert (hit.windows, hit.verdict.basis, hit.verdict.since_key) == (1, "key", 0)
    (whole,) = [own for own in kept(searched(question)) if own.camera == camera]
    assert whole.windows > 1  # the rest of its best span was computed afterwards


def test_what_no_memory_covers_is_walked_after_its_cost_is_announced() -> None:
    events = searched(LYING)
    notes = [number for number, event in enumerate(events) if isinstance(event, FindProgress) and event.note]
    walk = events[notes[-1]]
    assert isinstance(walk, FindProgress)
    assert (walk.stage, walk.done) == ("walk", 0)
    uncovered = len(world().cameras["dark"].blocks) + len(world().cameras["half"].blocks) - REMEMBERED
    assert walk.note.startswith(f"no memory covers {uncovered} windows")
    walked = [event for event in events if isinstance(event, Hit) and event.camera == "dark"]
    assert walked
    assert all(events.index(hit) > notes[-1] for hit in walked)
    assert all(hit.proposed is None for hit in walked)
    window = walked[-1].verdict.window
    assert any(first <= window <= last for first, last in happened(LYING, "dark"))


def test_the_walk_names_what_its_limit_left_out() -> None:
    found = summary(list(finder().find(FindQuestion(LYING, cameras=("dark",), limit=1))))
    assert (found.ended, len(found.hits)) == ("limit", 1)
    windows = len(world().cameras["dark"].blocks)
    assert reasons(found, "dark") == (
        f"no memory covers this time; {found.cost.windows} of its {windows} windows were computed"
    )
    assert kinds(found, "dark") == {"walked"}


def test_a_span_of_which_nothing_could_be_read_is_named_and_not_scored() -> None:
    memory, records = FolderMemory(world()), WorldRecords(world())
    memory.lost = {"ward"}
    records.gone = {"ward"}
    events = list(finder(memory, records).find(FindQuestion(LYING, cameras=("ward", "yard"))))
    assert not [hit for hit in kept(events) if hit.camera == "ward"]
    asked = [event.camera for event in events if isinstance(event, FindProgress) and event.stage == "verify"]
    assert "ward" not in asked
    assert "no holder has it" in reasons(summary(events), "ward")
    assert summary(events).asked == sum(span.camera == "yard" for span in memory.calls)


def test_records_that_are_gone_are_named() -> None:
    records = WorldRecords(world())
    records.gone = {"ward"}
    found = summary(list(finder(records=records).find(FindQuestion(LYING, cameras=("ward",)))))
    assert not found.hits
    assert "tokens.v1 has no records of this time" in reasons(found, "ward")
    assert "gone" in kinds(found, "ward")


def test_the_summary_counts_what_was_searched_and_its_cost() -> None:
    found = summary(searched(LYING))
    every = sum(sum(filmed.flops.values()) for filmed in world().cameras.values())
    total = sum(len(filmed.blocks) for filmed in world().cameras.values())
    assert found.cameras == len(world().cameras)
    assert found.cost.windows_total == total
    assert 0 < found.cost.windows < total
    assert found.cost.flops_total == pytest.approx(every, rel=0.15)
    assert 0 < found.cost.share < 1
    assert 0 < found.asked <= found.ranked


def test_a_cancelled_search_computes_no_further_window() -> None:
    asked: list[int] = []
    counting = past_windows(world())
    stop_after = 3

    def cancelled() -> bool:
        asked.append(0)
        return len(running) >= stop_after

    running: list[object] = []

    class Counted(type(counting)):  # type: ignore[misc]
        """Counts the windows as they are computed."""

        def verdicts(self, *arguments: object) -> Iterator[object]:
            for past in super().verdicts(*arguments):
                running.append(past)
                yield past

    windows = Counted(
        counting.settings, counting.engine, counting.planner, counting.load, counting.model_digest
    )
    searching = Finder(FolderMemory(world()), WorldRecords(world()), windows)
    events = list(searching.find(FindQuestion(LYING), cancelled))
    assert len(running) == stop_after
    found = summary(events)
    assert found.ended == "cancelled"
    assert found.cost.windows <= stop_after


@pytest.mark.parametrize("stage", ["rank", "ask", "verify", "walk"])
def test_a_search_is_cancelled_in_each_of_its_stages(stage: str) -> None:
    """Nothing is asked, computed or read after that, and hits that came before stand."""
    memory, begun, late = FolderMemory(world()), list[int](), list[str]()
    base = past_windows(world())

    def begin(what: str) -> None:
        if begun:
            late.append(what)

    class Watched(PastWindows):
        """Tells of each window that is computed."""

        __slots__ = ()

        def verdicts(self, *arguments: Any) -> Iterator[Any]:
            for past in super().verdicts(*arguments):
                begin("window")
                yield past

    class Reading(WorldRecords):
        """Tells of each time that everything is read."""

        def all(self, *arguments: Any) -> list[EpochRecords] | str:
            begin("records")
            return super().all(*arguments)

    windows = Watched(base.settings, base.engine, base.planner, base.load, base.model_digest)
    events: list[FindEvent] = []
    searching = Finder(memory, Reading(world()), windows)
    for event in searching.find(FindQuestion(LYING), lambda: bool(begun)):
        events.append(event)
        if isinstance(event, FindProgress) and event.stage == stage and not begun:
            begun.append(len(memory.calls))
    assert begun, f"no progress of {stage}"
    assert (late, begun) == ([], [len(memory.calls)])
    found = summary(events)
    assert found.ended == "cancelled"
    assert set(found.hits) == {hit.number for hit in kept(events)}
    assert bool(found.hits) == (stage == "walk")


def test_an_erased_time_is_no_hit() -> None:
    erased = START_US + MINUTE_US, START_US + 2 * MINUTE_US

    def hidden(camera: str, begin_us: int, end_us: int) -> bool:
        return camera == "ward" and begin_us < erased[1] and end_us > erased[0]

    made = finder()
    events = list(
        Finder(made.memory, made.records, made.windows, hidden).find(FindQuestion(LYING, ("ward",)))
    )
    assert not kept(events)
    assert "erased" in reasons(summary(events), "ward")
    assert "erased" in kinds(summary(events), "ward")


@pytest.mark.long
def test_a_time_that_is_erased_during_a_search_is_no_hit() -> None:
    erased: list[str] = []
    made = finder()
    found: list[FindEvent] = []
    hidden = lambda camera, *time: camera in erased  # noqa: E731
    for event in Finder(made.memory, made.records, made.windows, hidden).find(FindQuestion(LYING)):
        found.append(event)
        if isinstance(event, Hit) and not erased:
            erased.append(event.camera)  # after its hit was given
    (camera,) = erased
    numbers = {event.number: event.camera for event in found if isinstance(event, Hit)}
    assert camera not in {numbers[number] for number in summary(found).hits}
    assert summary(found).hits
    assert [event.camera for event in found if isinstance(event, Hit)].count(camera) == 1
    assert "erased" in reasons(summary(found), camera)


@pytest.mark.long
def test_half_of_a_moment_that_is_erased_leaves_the_other_half() -> None:
    ((first, last),) = happened(LYING, "ward")
    ends = [truth(LYING, "ward")[index].end.ToMicroseconds() for index in (first, last)]

    def hidden(camera: str, begin_us: int, end_us: int) -> bool:
        return camera == "ward" and begin_us < ends[0] and end_us > ends[0] - 1

    made = finder()
    question = FindQuestion(LYING, ("ward",), share=1.0)
    events = list(Finder(made.memory, made.records, made.windows, hidden).find(question))
    (hit,) = kept(events)
    assert ends[0] <= hit.begin_us < hit.end_us <= ends[1]
    assert "erased" in reasons(summary(events), "ward")


class LostMemory(FolderMemory):
    """Loses a camera after some spans were asked."""

    def ask(self, spans: Sequence[PastSpan], question: str) -> list[SpanAnswer]:
        """As ever."""
        answers = super().ask(spans, question)
        self.lost = {"ward"}
        return answers


@pytest.mark.long
def test_a_memory_that_is_lost_during_a_search_costs_no_hit() -> None:
    lost = LostMemory(world())
    lost.lost = {"ward"}
    events = list(finder(lost).find(FindQuestion(LYING, ("ward",), share=1.0)))
    (hit,) = kept(events)
    assert (hit.camera, hit.proposed) == ("ward", None)  # it was walked
    assert not summary(events).not_searched
    later = list(finder(LostMemory(world())).find(FindQuestion(LYING, ("ward",), share=1.0)))
    assert [hit.camera for hit in kept(later)] == ["ward"]


def test_windows_whose_tokens_are_gone_are_named() -> None:
    def load(record: TokensRecord) -> StrideBlock:
        raise LineageBrokenError("no replica has it")

    made = finder()
    windows = replace(made.windows, load=load)
    events = list(Finder(made.memory, made.records, windows).find(FindQuestion(LYING, ("ward",))))
    assert not kept(events)
    assert "no replica has it" in reasons(summary(events), "ward")


def test_a_failure_between_windows_keeps_the_hits_before_it() -> None:
    def load(record: TokensRecord) -> StrideBlock:
        if record.block.index > first + 3:
            raise StoreError("the store does not answer")
        return world().load(record)

    ((first, _),) = happened(LYING, "ward")
    made = finder()
    windows = replace(made.windows, load=load)
    events = list(Finder(made.memory, made.records, windows).find(FindQuestion(LYING, ("ward",), share=1.0)))
    (hit,) = kept(events)
    assert hit.verdict.window <= first + 3
    assert "the store does not answer" in reasons(summary(events), "ward")


def test_a_tenant_has_no_more_windows_than_its_quota_and_the_rest_is_named() -> None:
    usage = TenantUsage(read_quotas('{"default": {"searched": 0}}'), ("searched",))
    made = finder()
    question = FindQuestion(LYING, ("ward", "dark"))
    refused = summary(list(replace(made, quota=usage).find(question)))
    assert not refused.hits
    assert refused.cost.windows == 0
    for camera in ("ward", "dark"):
        assert "raise searched in LOOKOUT_TENANT_QUOTAS" in reasons(refused, camera)
    few = TenantUsage(read_quotas('{"default": {"searched": 5}}'), ("searched",), interval_s=1e6)
    assert summary(list(replace(made, quota=few).find(question))).cost.windows == 5
    assert few.totals["default", "searched"] == 5


@pytest.mark.long
def test_a_question_that_the_model_was_not_trained_for_is_marked() -> None:
    made = finder()
    windows = replace(made.windows, listed=(ListedQuestion((VEHICLE,), {}),))
    events = list(Finder(made.memory, made.records, windows).find(FindQuestion(LYING, ("ward",))))
    assert [hit.verdict.untrained for hit in kept(events)] == [True]
    assert not any(hit.verdict.untrained for hit in kept(searched(LYING)))


def test_what_the_memory_found_beyond_the_limit_is_named() -> None:
    made = finder()
    found = summary(list(made.find(FindQuestion(PERSON, ("ward", "yard"), limit=1))))
    assert (found.ended, len(found.hits)) == ("limit", 1)
    likely = [entry for entry in found.not_searched if entry.HasField("proposed")]
    assert likely
    assert all(entry.proposed >= 0.5 for entry in likely)
    assert {entry.reason for entry in likely} == {
        "the memory says yes, but the windows of this time were not computed"
    }


@pytest.mark.long
def test_only_cameras_and_tenants_that_are_meant_are_searched() -> None:
    # A camera may be called `*`: to a caller that may see only that one, it is no pattern.
    for question in (FindQuestion(LYING, ("*", "w*"), exact=True), FindQuestion(LYING, tenants=("acme",))):
        found = summary(list(finder().find(question)))
        assert (list(found.hits), found.cost.windows_total, found.cost.windows) == ([], 0, 0)
    own = FindQuestion(LYING, ("ward",), exact=True, tenants=("default",))
    assert len(kept(list(finder().find(own)))) == len(happened(LYING, "ward"))


def test_cameras_of_which_there_is_nothing_are_named() -> None:
    found = summary(list(finder().find(FindQuestion(LYING, ("gone", "shed-*")))))
    assert (list(found.hits), found.cameras, found.cost.windows) == ([], 0, 0)
    assert "data of gone" in reasons(found, "gone")
    assert "data of shed-*" in reasons(found, "")


@pytest.mark.long
def test_both_passes_of_a_time_are_searched_after_a_clock_went_back(tmp_path: Path) -> None:
    """Somebody falls in a minute; the clock goes back, and somebody falls in that minute again."""
    made = World(tmp_path)
    epochs = {
        filmed.epoch.epoch: filmed
        for filmed in (made.film(Spec("ward", "room", seed, 1, {0: "lying"})) for seed in (5, 8))
    }

    class Both(WorldRecords):
        def near(self, camera: str, begin_ms: int, end_ms: int) -> list[EpochRecords]:
            return [filmed.epoch for filmed in epochs.values()]

        def all(self, cameras: Sequence[str], since_ms: int, until_ms: int) -> list[EpochRecords]:
            return self.near("ward", since_ms, until_ms)

    def load(record: TokensRecord) -> StrideBlock:
        return epochs[record.epoch].blocks[record.block.index]

    windows = replace(past_windows(made), load=load)
    events = list(Finder(FolderMemory(made), Both(made), windows).find(FindQuestion(LYING, share=1.0)))
    made.folder.close()
    for number, filmed in epochs.items():
        (expected,) = moments(filmed.p_yes["lying"])
        hits = [hit for hit in kept(events) if hit.verdict.epoch == number]
        assert [expected[0] <= hit.verdict.window <= expected[1] for hit in hits] == [True]


@pytest.mark.long
def test_times_bound_the_search() -> None:
    first = FindQuestion(LYING, ("ward",), until_us=START_US + MINUTE_US)
    events = list(finder().find(first))
    assert not kept(events)
    assert summary(events).ranked == 6 or summary(events).ranked == 7
    later = FindQuestion(LYING, ("ward",), since_us=START_US + MINUTE_US)
    assert len(kept(list(finder().find(later)))) == len(happened(LYING, "ward"))


@pytest.mark.parametrize(
    ("question", "clauses"),
    [
        ("Is a vehicle in view?", ("Is a vehicle in view?",)),
        (
            "Is a vehicle in view, then is anyone lying on the ground?",
            ("Is a vehicle in view?", "Is anyone lying on the ground?"),
        ),
        ("is A in view? And then is B? Then is C", ("Is A in view?", "Is B?", "Is C?")),
        ("Is anyone there, then", ("Is anyone there, then",)),
        ("Was the gate then open?", ("Was the gate then open?",)),
        (
            "How many? [0..5] when count >= 3, then is it red? Then which? [a, b] when class = b",
            ("How many? [0..5] when count >= 3", "Is it red?", "Which? [a, b] when class = b"),
        ),
    ],
)
def test_a_question_has_clauses(question: str, clauses: tuple[str, ...]) -> None:
    assert clauses_of(question) == clauses


def test_clauses_hold_one_after_the_other() -> None:
    two = FindQuestion(f"{PERSON[:-1]}, then {LYING}", ("ward",), share=1.0)
    (hit,) = kept(list(finder().find(two)))
    (then,) = hit.then
    ((first, last),) = happened(LYING, "ward")
    assert first <= then.window <= last
    assert then.p_yes == pytest.approx(truth(LYING, "ward")[then.window].p_yes, abs=1e-4)
    assert (hit.verdict.question, then.question) == (PERSON, LYING)
    assert hit.begin_us <= then.start.ToMicroseconds() < then.end.ToMicroseconds() <= hit.end_us
    assert hit.p_yes == min(hit.verdict.p_yes, then.p_yes)
    other = FindQuestion(f"{PERSON[:-1]}, then {VEHICLE}", ("ward",), share=1.0)
    assert not kept(list(finder().find(other)))
