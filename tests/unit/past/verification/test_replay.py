"""A chain replayed on an engine of its own says what prefill committed, and notices what differs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import pytest

from lookout.models.engines import load_engine
from lookout.models.windows import Planner
from lookout.past.verification import Kind, Replayer
from lookout.runtime.store import Peers, StoreSettings, TensorClient
from lookout.services.prefill.batcher import Batcher
from lookout.streams.chains import EpochRecords, load_block, plan_digest
from lookout.v1.lineage_pb2 import StreamEvent
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Gate, Rule, Watch
from tests.prefill_world import block_record, event_record
from tests.tiny_models import checkpoint
from tests.unit.services.prefill_case import CROWD, FALL, World, verdicts


@pytest.fixture(scope="module")
def batcher() -> Iterator[Batcher]:
    batcher = Batcher(load_engine(checkpoint("internvl")), 8)
    yield batcher
    batcher.close()


@pytest.fixture(scope="module")
def run(batcher: Batcher) -> tuple[World, list[TokensRecord], list[Verdict]]:
    """A camera of 14 strides with a hole, an aborted window and a takeover; then a gap. Committed only."""
    world = World(batcher, FALL, CROWD, key_every=5)
    records: list[TokensRecord] = []
    committed: list[Verdict] = []
    last = None
    for k in range(14):
        records.append(block_record("cam", k, empty=k == 9))
        result = world.handle(records[-1])
        if k in (3, 6):
            del world.log[-1]
            world.abort("cam", last)
            result = world.handle(records[-1])
        committed += verdicts(result)
        last = result
    committed += world.tell(event_record("cam", StreamEvent.KIND_GAP, at=14))
    return world, records, committed


def replay(
    world: World, records: Sequence[TokensRecord], committed: Sequence[Verdict], **settings: object
) -> list[tuple[int, Kind, str]]:
    """What became of each verdict: its window, the kind and the reason."""
    planner = Planner(load_engine(checkpoint("internvl")).layout, world.settings.windows)
    client = TensorClient(Peers(StoreSettings()), None, world.store)
    replayer = Replayer(
        planner,
        load_engine(checkpoint("internvl")),
        lambda record: load_block(record, client, 500_000).block,
        **{"model_digest": "m1", "plan_digest": plan_digest(planner, reuse=True), **settings},  # type: ignore[arg-type]
    )
    by_window: dict[int, list[Verdict]] = defaultdict(list)
    for verdict in committed:
        by_window[verdict.window].append(verdict)
    epoch = EpochRecords("cam", 0, {record.block.index: record for record in records}, by_window)
    found = replayer.replay(epoch)
    return [(each.verdict.window, each.kind, each.reason) for each in found]


@pytest.mark.slow
def test_every_committed_answer_is_computed_again(
    run: tuple[World, list[TokensRecord], list[Verdict]],
) -> None:
    found = replay(*run)
    assert Counter(kind for _, kind, _ in found) == {Kind.VERIFIED: 26, Kind.UNANSWERED: 4}
    bases = [each.basis for each in run[2] if each.basis]
    assert bases.count("incremental") > 8
    assert bases.count("key") > 6


def test_a_changed_answer_is_found(run: tuple[World, list[TokensRecord], list[Verdict]]) -> None:
    world, records, committed = run
    forged = [Verdict.FromString(each.SerializeToString()) for each in committed]
    forged[10].p_yes += 2e-4
    wrong = [each for each in replay(world, records, forged) if each[1] is Kind.UNVERIFIED]
    assert [window for window, _, _ in wrong] == [forged[10].window]
    assert f"{forged[10].p_yes:.6f}" in wrong[0][2]


def test_a_wrong_basis_is_found(run: tuple[World, list[TokensRecord], list[Verdict]]) -> None:
    """KV of another chain would answer differently: an incremental answer is not that of a key window."""
    world, records, committed = run
    forged = [Verdict.FromString(each.SerializeToString()) for each in committed]
    chosen = [each for each in forged if each.since_key >= 2]
    for each in chosen:
        each.basis, each.since_key = "key", 0
    found = replay(world, records, forged)
    assert any(kind is Kind.UNVERIFIED for _, kind, _ in found)


def test_what_is_past_its_retention_is_expired(
    run: tuple[World, list[TokensRecord], list[Verdict]],
) -> None:
    world, records, committed = run
    found = replay(world, records[4:], committed)
    expired = {window for window, kind, _ in found if kind is Kind.EXPIRED}
    assert {0, 1, 2, 3} <= expired
    assert not any(kind is Kind.UNVERIFIED for _, kind, _ in found)
    assert any(kind is Kind.VERIFIED for _, kind, _ in found)


def test_other_settings_and_other_models_are_named(
    run: tuple[World, list[TokensRecord], list[Verdict]],
) -> None:
    for settings, word in (({"plan_digest": "other"}, "settings"), ({"model_digest": "m2"}, "model")):
        found = replay(*run, **settings)
        wrong = [reason for _, kind, reason in found if kind is Kind.UNVERIFIED]
        assert len(wrong) == 26
        assert all(word in reason for reason in wrong)


def test_idle_windows_repeat_the_answer_before(batcher: Batcher) -> None:
    world = World(batcher, FALL, idle_age_s=20.0)
    records = [block_record("cam", k, still=True) for k in range(8)]
    committed = world.tell(*records)
    assert [each.basis for each in committed].count("idle") == 5
    assert {kind for _, kind, _ in replay(world, records, committed)} == {Kind.VERIFIED}
    committed[-1].p_yes += 0.01
    assert replay(world, records, committed)[-1][1] is Kind.UNVERIFIED


@pytest.mark.parametrize("gate", [Gate(motion=True), Gate(watch="fall")])
def test_a_closed_gate_is_checked(batcher: Batcher, gate: Gate) -> None:
    gated = Watch(id="gated", version=1, question="Is it?", rule=Rule(threshold=0.99), gate=gate)
    fall = Watch(id="fall", version=1, question="Is anyone lying?", rule=Rule(threshold=0.99))
    world = World(batcher, fall, gated)
    records = [block_record("cam", k, still=True) for k in range(3)]
    committed = [verdict for record in records for verdict in verdicts(world.handle(record))]
    closed = [verdict for verdict in committed if verdict.outcome == Verdict.OUTCOME_GATED]
    watches = {(watch.id, watch.version): watch for watch in (fall, gated)}
    assert len(closed) >= 2
    kinds = Counter(kind for _, kind, _ in replay(world, records, committed, watches=watches))
    assert kinds == {Kind.VERIFIED: len(committed)}
    assert Kind.EXPIRED in {kind for _, kind, _ in replay(world, records, committed)}
    # A window whose gate was open all the same.
    forged = [Verdict.FromString(each.SerializeToString()) for each in committed]
    if gate.motion:
        records = [block_record("cam", k) for k in range(3)]
    else:
        for each in forged:
            if each.watch == "fall" and each.window == closed[-1].window - 1:
                each.rule.threshold = 0.001
    wrong = [
        why for _, kind, why in replay(world, records, forged, watches=watches) if kind is Kind.UNVERIFIED
    ]
    assert any("its gate was open" in why for why in wrong)
