"""An epoch played again: other questions get the answers that they would have got, from any window on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from lookout.models.engines import Engine, Question, load_engine
from lookout.models.windows import Planner, StrideBlock
from lookout.runtime.store import LineageBrokenError, Peers, StoreSettings, TensorClient
from lookout.services.prefill.batcher import Batcher
from lookout.streams import BlockGoneError, Cause, ReplayedWindow, WindowRule
from lookout.streams.chains import EpochRecords, chain_windows, load_block, replay_epoch
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from tests.prefill_world import block_record
from tests.tiny_models import checkpoint
from tests.unit.services.prefill_case import CROWD, FALL, World

WINDOWS = 14
ASKED = [Question("crowd", CROWD.question)]


@pytest.fixture(scope="module")
def batcher() -> Iterator[Batcher]:
    batcher = Batcher(load_engine(checkpoint("internvl")), 8)
    yield batcher
    batcher.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = load_engine(checkpoint("internvl"))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def past(batcher: Batcher) -> tuple[World, EpochRecords, dict[int, float]]:
    """A camera with one watch and a lost stream, its epoch, and what a second watch was answered."""
    world = World(batcher, FALL, CROWD, key_every=5)
    records = [block_record("cam", index, empty=index == 9) for index in range(WINDOWS)]
    verdicts: dict[int, list[Verdict]] = defaultdict(list)
    crowd: dict[int, float] = {}
    for record in records:
        if record.block.index == 4:
            batcher.forget("cam/0")
        for verdict in world.tell(record):
            if verdict.watch == "fall":
                verdicts[verdict.window].append(verdict)
            elif verdict.outcome == Verdict.OUTCOME_ANSWERED:
                crowd[verdict.window] = verdict.p_yes
    return world, EpochRecords("cam", 0, {r.block.index: r for r in records}, verdicts), crowd


def play(
    world: World, epoch: EpochRecords, engine: Engine, windows: Sequence[int] | None = None, lost: int = -1
) -> list[ReplayedWindow]:
    client = TensorClient(Peers(StoreSettings()), None, world.store)

    def load(record: TokensRecord) -> StrideBlock:
        if record.block.index == lost:
            raise LineageBrokenError("gone")
        return load_block(record, client, 500_000).block

    asked = [
        replace(window, questions=ASKED)
        for window in chain_windows(epoch)
        if windows is None or window.index in windows
    ]
    planner = Planner(engine.layout, world.settings.windows)
    rule = WindowRule(world.settings.window_blocks)
    return list(replay_epoch(epoch, asked, engine, planner, load, model_digest="m1", rule=rule))


def answers(played: Sequence[ReplayedWindow]) -> dict[int, float]:
    return {p.window.index: p.answered.answer.answers[0].p_yes for p in played if p.answered is not None}


@pytest.mark.slow
def test_another_question_is_answered_as_it_would_have_been(
    past: tuple[World, EpochRecords, dict[int, float]], engine: Engine
) -> None:
    world, epoch, crowd = past
    played = play(world, epoch, engine)
    assert answers(played) == pytest.approx(crowd, abs=1e-5)
    refused = [p for p in played if p.answered is None]
    assert [p.refusal.cause for p in refused if p.refusal is not None] == [Cause.NO_FRAMES]
    assert not engine.memory(), "the KV of the stream is freed"
    bases = {p.answered.basis for p in played if p.answered is not None}
    assert bases == {"key", "incremental"}


@pytest.mark.slow
@pytest.mark.parametrize("window", [2, 4, 8, 11, 13])
def test_a_window_alone_is_reached_by_its_chain(
    past: tuple[World, EpochRecords, dict[int, float]], engine: Engine, window: int
) -> None:
    world, epoch, crowd = past
    assert answers(play(world, epoch, engine, [window])) == pytest.approx({window: crowd[window]}, abs=1e-5)


def test_a_block_that_is_gone_costs_the_windows_that_need_it(
    past: tuple[World, EpochRecords, dict[int, float]], engine: Engine
) -> None:
    world, epoch, crowd = past
    played = play(world, epoch, engine, lost=2)
    gone = {p.window.index for p in played if isinstance(p.error, BlockGoneError)}
    assert {2, 3, 4} <= gone
    later = answers(played)
    assert later
    assert later == pytest.approx({index: crowd[index] for index in later}, abs=1e-5)


@pytest.mark.slow
def test_windows_without_verdicts_are_planned_as_a_fleet_would(
    batcher: Batcher, engine: Engine, past: tuple[World, EpochRecords, dict[int, float]]
) -> None:
    """Nobody asked anything: the chain begins with the epoch, and its key windows are those of its phase."""
    world = World(batcher, CROWD, key_every=5)
    expected = {verdict.window: verdict for verdict in world.tell(*past[1].blocks.values())}
    played = play(world, EpochRecords("cam", 0, past[1].blocks), engine)
    computed = {k: v for k, v in expected.items() if v.outcome == Verdict.OUTCOME_ANSWERED}
    assert answers(played) == pytest.approx({k: v.p_yes for k, v in computed.items()}, abs=1e-5)
    since = {p.window.index: p.answered.plan.since_key for p in played if p.answered is not None}
    assert since == {k: v.since_key for k, v in computed.items()}


def test_a_block_of_another_model_is_not_seen(
    past: tuple[World, EpochRecords, dict[int, float]], engine: Engine, batcher: Batcher
) -> None:
    records = [block_record("cam", k, model="m0" if k == 3 else "m1") for k in range(7)]
    world = World(batcher, CROWD)
    expected = {v.window: v.p_yes for v in world.tell(*records) if v.outcome == Verdict.OUTCOME_ANSWERED}
    epoch = EpochRecords("cam", 0, {r.block.index: r for r in records})
    assert 3 not in expected
    assert answers(play(world, epoch, engine)) == pytest.approx(expected, abs=1e-5)
