"""One table of streams: a player in one process gives the windows and the p(yes) of the fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from lookout.models.engines import Question
from lookout.models.windows import Planner
from lookout.services.prefill.batcher import Batcher
from lookout.streams import Player, StreamBlock, WindowRule
from lookout.streams.chains import block_facts, empty_block, foreign_reason
from lookout.v1.lineage_pb2 import CAUSE_LATE
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from tests.prefill_world import block_record
from tests.unit.services.prefill_case import FALL, World, engine_of, loaded


def record(
    index: int,
    *,
    empty: bool = False,
    damaged: Sequence[int] = (),
    late: bool = False,
    model: str = "m1",
) -> TokensRecord:
    message = block_record("cam", index, empty=empty or late, model=model)
    if late:
        message.block.missing, message.block.missing_cause = "late", CAUSE_LATE
    for frame in damaged:
        message.block.frames[frame].corrupt = True
    return message


STREAMS: Mapping[str, Sequence[TokensRecord]] = {
    "plain": [record(k) for k in range(9)],
    "a hole": [record(k, empty=k == 4) for k in range(9)],
    "a hole longer than a window": [record(k, empty=1 < k < 6) for k in range(9)],
    "empty at the beginning": [record(k, empty=k < 2) for k in range(6)],
    "late": [record(k, late=k in (2, 4)) for k in range(8)],
    "indices that never came": [record(k) for k in (0, 1, 2, 5, 6, 7)],
    "damaged": [record(k, damaged=range(4) if k in (2, 3) else [1] if k == 7 else ()) for k in range(9)],
    "a foreign model": [record(k, model="m0" if k in (3, 4) else "m1") for k in range(9)],
    "a lost stream": [record(k) for k in range(9)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_has_the_windows_of_the_fleet(batcher: Batcher, name: str) -> None:
    records, lost = STREAMS[name], 5 if name == "a lost stream" else None
    world = World(batcher, FALL, max_damage=0.3)
    fleet: dict[int, float | str] = {}
    for message in records:
        if message.block.index == lost:
            engine_of(batcher).close_stream("cam/0")
        for verdict in world.tell(message):
            answered = verdict.outcome == Verdict.OUTCOME_ANSWERED
            fleet[verdict.window] = verdict.p_yes if answered else Verdict.Outcome.Name(verdict.outcome)
    world.release("cam")

    engine = engine_of(batcher)
    planner = Planner(engine.layout, world.settings.windows)
    player = Player(engine, planner, WindowRule(world.settings.window_blocks, max_damage=0.3))
    alone: dict[int, float | str] = {}
    for message in records:
        index = message.block.index
        if index == lost:
            engine.close_stream("cam/0")
        block = loaded("cam", index) if message.block.patches else empty_block(message)
        foreign = foreign_reason(message, "m1")
        facts = block_facts(message, world.settings.block_samples, foreign=foreign)
        (played,) = player.step([StreamBlock(block, facts)], [Question("fall", FALL.question)])
        if played.refusal is not None:
            alone[index] = f"OUTCOME_{played.refusal.kind.name}"
        elif played.answer is not None:
            alone[index] = played.answer.answers[0].p_yes
    player.close()

    assert alone == pytest.approx(fleet, abs=1e-5)
    assert any(isinstance(outcome, float) for outcome in fleet.values())
