"""Watches that are asked only while something else holds: what is computed, and what survives a kill."""

from __future__ import annotations

import pytest

from lookout.services.prefill.batcher import Batcher
from lookout.v1.lineage_pb2 import CAUSE_GATE, StreamEvent
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Gate, Point, Rule, Watch, Zone
from tests.prefill_world import block_record, event_record
from tests.unit.services.prefill_case import World, brief, verdicts

#: the random model answers about 0.01: each threshold makes its answers all yes, or all no
YES, NO = 0.001, 0.99
CORNER = Zone(points=[Point(x=0, y=0), Point(x=0.01, y=0), Point(x=0.01, y=0.01)])


def watch(name: str, threshold: float = NO, gate: Gate | None = None, **rule: object) -> Watch:
    return Watch(
        id=name,
        version=1,
        question=f"Is there a {name}?",
        rule=Rule(threshold=threshold, **rule),  # type: ignore[arg-type]
        gate=gate,
    )


def outcomes(found: list[Verdict], name: str) -> str:
    """The outcomes of a watch, a letter for each window: a(nswered), g(ated), G(ap), d(egraded)."""
    letters = {
        Verdict.OUTCOME_ANSWERED: "a",
        Verdict.OUTCOME_GATED: "g",
        Verdict.OUTCOME_GAP: "G",
        Verdict.OUTCOME_DEGRADED: "d",
    }
    return "".join(letters[verdict.outcome] for verdict in found if verdict.watch == name)


def blocks(moving: str) -> list[TokensRecord]:
    """A block for each letter: m(oving) or s(till)."""
    return [block_record("cam", index, still=letter == "s") for index, letter in enumerate(moving)]


def test_without_motion_nothing_is_computed(batcher: Batcher) -> None:
    world = World(batcher, watch("fall", gate=Gate(motion=True)))
    before = batcher.windows
    found = world.tell(*blocks("mmsssssmm"))
    # Windows are of three blocks: the last motion leaves with the fifth.
    assert outcomes(found, "fall") == "aaaagggaa"
    assert batcher.windows - before == 6
    closed = [verdict for verdict in found if verdict.outcome == Verdict.OUTCOME_GATED]
    for verdict in closed:
        assert (verdict.HasField("p_yes"), verdict.cause, verdict.basis) == (False, CAUSE_GATE, "")
        assert (verdict.cost.flops_prefill, verdict.cost.flops_question) == (0, 0)
        assert verdict.cost.flops_vision > 0  # the tower has encoded the newest block all the same
        assert "nothing moved" in verdict.reason
    assert found[7].basis == "key"  # nothing is reused across windows that were left out
    assert (world.counts["gated"], world.counts["answered"]) == (3, 6)


def test_motion_outside_its_zones_opens_no_gate(batcher: Batcher) -> None:
    world = World(batcher, watch("fall", gate=Gate(motion=True), zones=[CORNER]))
    assert outcomes(world.tell(*blocks("mmm")), "fall") == "ggg"


def test_a_question_waits_for_another_watch(batcher: Batcher) -> None:
    person, fall = watch("person"), watch("fall", gate=Gate(watch="person"))
    found = World(batcher, person, fall).tell(*blocks("mmmm"))
    # Before the first window nobody has answered.
    assert outcomes(found, "person") == "aaaa"
    assert outcomes(found, "fall") == "aggg"
    assert "person" in found[-2].reason or "person" in found[-1].reason
    open_gate = World(batcher, watch("person", YES), fall).tell(*blocks("mmmm"))
    assert outcomes(open_gate, "fall") == "aaaa"


def test_gates_follow_one_another(batcher: Batcher) -> None:
    world = World(
        batcher,
        watch("person", gate=Gate(motion=True)),
        watch("fall", gate=Gate(watch="person")),
    )
    found = world.tell(*blocks("sss"))
    assert (outcomes(found, "person"), outcomes(found, "fall")) == ("ggg", "agg")


@pytest.mark.parametrize("gate", ["missing", "circle", "both"])
def test_a_gate_that_says_nothing_is_open(batcher: Batcher, gate: str) -> None:
    one = watch("one", gate=Gate(watch={"missing": "nobody"}.get(gate, "two")))
    two = watch("two", gate=Gate(watch="one") if gate == "circle" else None)
    if gate == "both":  # a watch that is open, and motion that is not there
        one, two = watch("one", gate=Gate(watch="two", motion=True)), watch("two", YES)
    found = World(batcher, one, two).tell(*blocks("sss"))
    assert outcomes(found, "one") == ("ggg" if gate == "both" else "aaa")


def test_an_incident_is_followed_until_it_can_close(batcher: Batcher) -> None:
    """Motion ends, but somebody still lies there: the question is asked on."""
    lying = watch("fall", YES, gate=Gate(motion=True), k=2, n=3)
    assert outcomes(World(batcher, lying).tell(*blocks("mssssss")), "fall") == "aaaaaaa"
    # From the second version on the answers are no: as many as the rule counts are computed.
    world = World(batcher, lying)
    world.tell(*blocks("mss"))
    (state,) = world.states["cam"].unit.gates.messages()
    assert (state.due, state.yes) == (3, True)


def test_a_gap_is_a_gap_behind_a_closed_gate(batcher: Batcher) -> None:
    world = World(batcher, watch("fall", gate=Gate(motion=True)))
    found = world.tell(
        *blocks("sss"), block_record("cam", 3, empty=True), event_record("cam", StreamEvent.KIND_GAP, at=4)
    )
    assert outcomes(found, "fall") == "gggGG"


def test_a_new_owner_decides_as_the_old_one(batcher: Batcher) -> None:
    """Killed after every window, before and after its commit."""
    watches = (
        watch("person"),
        watch("fall", gate=Gate(watch="person")),
        watch("lying", YES, gate=Gate(motion=True), n=3),
    )
    records = blocks("mmssssmmss")
    expected = World(batcher, *watches).tell(*records)
    world = World(batcher, *watches)
    committed, last = [], None
    for record in records:
        world.handle(record)  # lost before its commit
        del world.log[-1]
        world.abort("cam", last)
        last = world.handle(record)
        committed += verdicts(last)
        world.abort("cam", last)
    assert brief(committed) == brief(expected)
    assert "g" in outcomes(expected, "fall")
