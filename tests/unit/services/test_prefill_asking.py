"""Watches that are asked about strides and watches that are asked about windows, on one camera."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from lookout.models.engines import EngineError, WindowAnswer, WindowRequest, load_engine
from lookout.models.windows import Planner
from lookout.past.verification import Kind, Replayer
from lookout.runtime.store import Peers, StoreSettings, TensorClient
from lookout.runtime.worker import Result
from lookout.services.prefill.batcher import Batcher
from lookout.streams.chains import EpochRecords, load_block, plan_digest
from lookout.v1.lineage_pb2 import StreamEvent
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from tests.prefill_world import block_record, event_record
from tests.tiny_models import checkpoint
from tests.unit.services.prefill_case import World, engine_of, verdicts

QUESTIONS = {
    "crowd": "Are there many people?",
    "door": "Is the door open?",
    "fall": "Is anyone lying?",
    "van": "Is a van in view?",
}
#: None: the watch is removed
Change = tuple[str, Watch | None]


def watch(name: str, asked: Watch.Asked = Watch.ASKED_STRIDES, version: int = 1) -> Watch:
    return Watch(id=name, version=version, question=QUESTIONS[name], asked=asked)


def drawn(seed: int, windows: int) -> tuple[dict[int, list[Change]], set[int]]:
    """Watches that come, change and go, by window; and the windows before which the process is replaced."""
    draw, changes = np.random.default_rng(seed), dict[int, list[Change]]()
    known = dict.fromkeys(QUESTIONS, 0)
    standing: set[str] = set()
    for window in range(windows):
        for name in QUESTIONS:
            if draw.random() > (0.7 if window == 0 else 0.12):
                continue
            if name in standing and draw.random() < 0.4:
                standing.remove(name)
                changes.setdefault(window, []).append((name, None))
                continue
            standing.add(name)
            known[name] += 1
            asked = draw.choice([Watch.ASKED_UNSPECIFIED, Watch.ASKED_WINDOWS, *[Watch.ASKED_STRIDES] * 2])
            changes.setdefault(window, []).append((name, watch(name, int(asked), known[name])))  # type: ignore[arg-type]
    return changes, {int(window) for window in draw.integers(1, windows, 2)}


def told(
    batcher: Batcher,
    changes: Mapping[int, Sequence[Change]],
    restarts: set[int],
    windows: int,
    only: str | None = None,
) -> tuple[World, list[Verdict]]:
    """What a camera commits, with all of the watches or with one `only`."""
    world, committed, last = World(batcher, key_every=5), list[Verdict](), None
    for window in range(windows):
        for name, changed in changes.get(window, ()):
            if only not in {None, name}:
                continue
            if changed is None:
                world.delete(name)
            else:
                world.publish(changed)
        if window in restarts and isinstance(last, Result) and last.checkpoint is not None:
            world.handler = world.restarted()
            world.abort("cam", last)
        last = world.handle(block_record("cam", window))
        committed += verdicts(last)
    world.release("cam")
    return world, committed


def ways(found: Sequence[Verdict]) -> list[tuple[int, str, int, str, int]]:
    """How each verdict came about."""
    return [(v.window, v.watch, v.watch_version, v.basis, v.since_key) for v in found]


def findings(world: World, committed: Sequence[Verdict]) -> list[tuple[str, Kind, str]]:
    """What `lookout verify` says."""
    engine = load_engine(checkpoint("internvl"))
    client = TensorClient(Peers(StoreSettings()), None, world.store)
    planner = Planner(engine.layout, world.settings.windows)
    replayer = Replayer(
        planner,
        engine,
        lambda record: load_block(record, client, 500_000).block,
        model_digest="m1",
        plan_digest=plan_digest(planner, reuse=True),
    )
    by_window: dict[int, list[Verdict]] = defaultdict(list)
    for verdict in committed:
        by_window[verdict.window].append(verdict)
    blocks = {index: block_record("cam", index) for index in range(max(by_window) + 1)}
    found = replayer.replay(EpochRecords("cam", 0, blocks, by_window))
    told = [(one.verdict.basis, one.kind, one.reason) for one in found]
    engine.close()
    return told


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_an_answer_does_not_depend_on_how_other_watches_of_the_camera_are_asked(
    batcher: Batcher, seed: int
) -> None:
    changes, restarts = drawn(seed, 16)
    world, mixed = told(batcher, changes, restarts, 16)
    assert {"strides", "key", "incremental"} <= {verdict.basis for verdict in mixed}
    by_window = defaultdict(set)
    for verdict in mixed:
        by_window[verdict.window].add(verdict.basis == "strides")
    assert {True, False} in by_window.values(), "some windows have both"
    for name in QUESTIONS:
        _, own = told(batcher, changes, restarts, 16, name)
        among = [verdict for verdict in mixed if verdict.watch == name]
        strides = [[v for v in found if v.basis == "strides"] for found in (among, own)]
        assert ways(strides[0]) == ways(strides[1])
        assert [v.p_yes for v in strides[0]] == pytest.approx([v.p_yes for v in strides[1]], abs=1e-5)
        assert [v.window for v in among] == [v.window for v in own]
    assert {kind for _, kind, _ in findings(world, mixed)} == {Kind.VERIFIED}


@pytest.mark.slow
def test_watches_of_windows_have_the_chain_that_they_have_without_watches_of_strides(
    batcher: Batcher,
) -> None:
    changes: dict[int, list[Change]] = {
        0: [("fall", watch("fall", Watch.ASKED_UNSPECIFIED)), ("crowd", watch("crowd"))],
        4: [("van", watch("van"))],
        7: [("crowd", None)],
        9: [("van", watch("van", version=2))],
    }
    world, mixed = told(batcher, changes, {6}, 13)
    _, own = told(batcher, changes, {6}, 13, "fall")
    among = [verdict for verdict in mixed if verdict.watch == "fall"]
    assert ways(among) == ways(own)
    assert [v.p_yes for v in among] == pytest.approx([v.p_yes for v in own], abs=1e-5)
    assert [v.audit for v in among] == pytest.approx([v.audit for v in own], abs=1e-5)
    assert [v.key_every for v in among] == [5] * 13
    found = findings(world, mixed)
    assert [kind for _, kind, _ in found] == [Kind.VERIFIED] * len(mixed)
    assert {basis for basis, _, _ in found} == {"key", "incremental", "strides"}


def test_a_forged_answer_of_strides_is_found(batcher: Batcher) -> None:
    world, committed = told(batcher, {0: [("fall", watch("fall")), ("van", watch("van", 1))]}, set(), 4)
    committed[2].p_yes += 2e-4
    committed[5].plan_digest = "other"
    found = findings(world, committed)
    assert [reason.split()[0] for _, kind, reason in found if kind is Kind.UNVERIFIED] == ["p_yes", "its"]


def test_a_camera_asked_of_strides_alone_holds_no_kv(batcher: Batcher) -> None:
    world = World(batcher, watch("fall"), watch("crowd", Watch.ASKED_WINDOWS))
    world.tell(*[block_record("cam", index) for index in range(4)])
    assert engine_of(batcher).held("cam/0") is not None
    world.publish(watch("crowd", Watch.ASKED_STRIDES, 2))
    found = world.tell(block_record("cam", 4))
    assert {(v.basis, v.HasField("since_key"), v.key_every) for v in found} == {("strides", False, 0)}
    world.tell(block_record("yard", 0))  # the engine's thread has taken what was to be freed
    assert engine_of(batcher).held("cam/0") is None
    assert found[0].cost.tokens_reused == 0
    world.publish(watch("crowd", Watch.ASKED_WINDOWS, 3))
    again = world.tell(block_record("cam", 5), block_record("cam", 6))
    assert [v.basis for v in again if v.watch == "crowd"] == ["key", "incremental"]
    assert not world.tell(block_record("yard", 1))[0].HasField("audit")
    world.release("cam")


def test_each_stride_is_asked_once(batcher: Batcher) -> None:
    """Also while another watch is asked about windows, and where the fleet's preset is strides."""
    asked: list[WindowRequest] = []

    class Counted:
        def answer(self, request: WindowRequest) -> WindowAnswer:
            asked.append(request)
            return batcher.answer(request)

        def forget(self, stream: str) -> None:
            batcher.forget(stream)

    for preset in ("default", "strides"):
        world = World(batcher, watch("fall"), watch("van", Watch.ASKED_WINDOWS), preset=preset)
        world.handler = world.restarted(answers=Counted())
        asked.clear()
        world.tell(*[block_record("cam", index) for index in range(5)])
        alone = [request.plan.blocks for request in asked if not request.keep]
        assert alone == [(index,) for index in range(5)]
        assert len(asked) == (10 if preset == "default" else 5)
        world.release("cam")


def test_an_engine_that_fails_at_windows_still_answers_strides(batcher: Batcher) -> None:
    class Failing:
        def answer(self, request: WindowRequest) -> WindowAnswer:
            answer = batcher.answer(request)
            failed = WindowAnswer(answer.stream, answer.window, error=EngineError("too long"))
            return failed if request.keep else answer

        def forget(self, stream: str) -> None:
            batcher.forget(stream)

    world = World(batcher, watch("crowd"), watch("fall", Watch.ASKED_WINDOWS), watch("van"))
    world.handler = world.restarted(answers=Failing())
    found = world.tell(block_record("cam", 0))
    answered = Verdict.OUTCOME_ANSWERED
    assert [(v.watch, v.outcome) for v in found] == [
        ("crowd", answered),
        ("fall", Verdict.OUTCOME_DEGRADED),
        ("van", answered),
    ]
    assert found[1].reason == "too long"
    world.release("cam")


def test_a_new_epoch_repeats_no_answer_of_a_stride_of_the_one_before(batcher: Batcher) -> None:
    """Its strides have the same indices."""
    for preset in ("default", "strides"):
        world = World(batcher, watch("fall"), preset=preset)
        world.tell(*[block_record("cam", index) for index in range(3)])
        # The first strides of the new epoch close no window, for which nothing is asked.
        world.delete("fall")
        world.tell(block_record("cam", 0, epoch=1), block_record("cam", 1, epoch=1))
        world.publish(watch("fall", version=2))
        (found,) = world.tell(block_record("cam", 2, epoch=1))
        world.release("cam")
        fresh = World(batcher, watch("fall"), preset=preset)
        exact = fresh.tell(*[block_record("cam", index, epoch=1) for index in range(3)])[-1]
        fresh.release("cam")
        assert found.p_yes == pytest.approx(exact.p_yes, abs=1e-5)


def test_a_gap_changes_nothing_of_how_a_watch_is_asked(batcher: Batcher) -> None:
    world = World(batcher, watch("fall"), watch("van", Watch.ASKED_WINDOWS))
    found = world.tell(
        block_record("cam", 0),
        event_record("cam", StreamEvent.KIND_GAP, at=1),
        block_record("cam", 0, epoch=1),
    )
    assert [(v.watch, v.basis) for v in found] == [
        ("fall", "strides"),
        ("van", "key"),
        ("fall", ""),
        ("van", ""),
        ("fall", "strides"),
        ("van", "key"),
    ]
    world.release("cam")
