"""Watches with allowed answers: what a verdict says of them, and that a kill changes none of its bytes."""

from __future__ import annotations

import pytest

from lookout.models.engines.asked import question_fault
from lookout.models.families import load_layout, load_tokenizer
from lookout.services.prefill.batcher import Batcher
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Gate, Rule, Watch
from lookout.wire import to_json
from tests.prefill_world import block_record
from tests.tiny_models import checkpoint
from tests.unit.services.prefill_case import World, verdicts

COUNT = "How many people are in view? [0, 1, 2, 10] when count >= 2"


def watch(name: str, question: str, threshold: float = 0.5, **values: object) -> Watch:
    return Watch(id=name, version=1, question=question, rule=Rule(threshold=threshold), **values)  # type: ignore[arg-type]


WATCHES = (watch("count", COUNT, 1e-3), watch("person", "Is a person in view?"))


def of(found: list[Verdict], name: str) -> list[Verdict]:
    return [verdict for verdict in found if verdict.watch == name]


def test_a_verdict_has_the_probability_of_every_allowed_answer(batcher: Batcher) -> None:
    found = World(batcher, *WATCHES).tell(*(block_record("cam", index) for index in range(4)))
    for verdict in of(found, "count"):
        assert verdict.question == COUNT
        assert [share.answer for share in verdict.answers] == ["0", "1", "2", "10"]
        shares = [share.p for share in verdict.answers]
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert verdict.p_yes == pytest.approx(sum(shares[2:]), abs=1e-5)
        assert len({round(share, 9) for share in shares}) == 4
    assert not any(verdict.answers for verdict in of(found, "person"))


def test_a_window_in_which_nothing_changed_repeats_them(batcher: Batcher) -> None:
    still = (block_record("cam", index, still=True) for index in range(6))
    found = of(World(batcher, *WATCHES, idle_age_s=60.0).tell(*still), "count")
    repeated = [verdict for verdict in found if verdict.basis == "idle"]
    assert repeated
    for verdict in repeated:
        assert len(verdict.answers) == 4
        assert list(verdict.answers) == list(found[found.index(verdict) - 1].answers)


def test_after_a_kill_the_verdicts_are_the_same_to_the_byte(batcher: Batcher) -> None:
    """A window was computed and its transaction aborted; another process computes it again."""

    def bytes_of(found: list[Verdict]) -> list[bytes]:
        for verdict in found:
            verdict.cost.device_us = 0  # a measured time
        return list(map(to_json, found))

    records = [block_record("cam", index) for index in range(4)]
    straight = bytes_of(World(batcher, *WATCHES, reuse=False).tell(*records))
    world = World(batcher, *WATCHES, reuse=False)
    last, committed = None, list[Verdict]()
    for index, record in enumerate(records):
        world.handle(record)
        del world.log[index:]
        world.handler = world.restarted()
        world.abort("cam", last)
        last = world.handle(record)
        committed += verdicts(last)
    assert bytes_of(committed) == straight


def test_answers_that_the_tokenizer_cannot_tell_apart_cost_their_own_watch_alone(batcher: Batcher) -> None:
    folder = checkpoint("internvl")
    tokenizer, layout = load_tokenizer(folder), load_layout(folder)
    assert question_fault(COUNT, tokenizer=tokenizer, layout=layout) is None
    broken = watch("broken", "Gate? [open, shut] when class = open")
    world = World(batcher, broken, *WATCHES, watch("after", "Is it dark?", gate=Gate(watch="person")))
    world.asker._fault = lambda question: "cannot tell" if question == broken.question else None
    found = world.tell(block_record("cam", 0))
    assert {verdict.watch: verdict.outcome for verdict in found} == {
        "broken": Verdict.OUTCOME_DEGRADED,
        "count": Verdict.OUTCOME_ANSWERED,
        "person": Verdict.OUTCOME_ANSWERED,
        "after": Verdict.OUTCOME_ANSWERED,
    }
    assert of(found, "broken")[0].reason == "cannot tell"
