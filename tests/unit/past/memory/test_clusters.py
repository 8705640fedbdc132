"""Every token is in exactly one cluster at all times, and every sum is that of the members."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from lookout.past.memory import CameraMemory, HistoryError, Keep, LayerIndex, SplitMode, ThresholdRule
from lookout.past.memory.clusters import NOBODY
from lookout.past.memory.history import in_half
from tests.unit.past.memory.records import SHAPE, SMALL, block, memory, play, scene_of, state


def check(one: CameraMemory) -> None:
    open_tokens = np.concatenate([np.arange(b.first_token, b.first_token + b.block.rows) for b in one.open])
    held = np.searchsorted(one.table.token_frame.all, one.held_from)
    for layer in range(SHAPE.layers):
        check_index(one.layers[layer])
        clusters = one.clusters(layer)
        tokens = np.concatenate([open_tokens, *(c.slab.tokens for c in clusters)])
        assert np.array_equal(np.sort(tokens), np.arange(held, one.table.tokens))
        ids = {c.id for c in clusters}
        assert len(ids) == len(clusters)
        for cluster in clusters:
            assert cluster.count <= SMALL.largest + SMALL.waiting + 15 or cluster.marked
            assert cluster.owner == NOBODY or cluster.owner in ids
            data = cluster.slab.data.reshape(cluster.count, 2, -1)
            norm = data[:, 0] / data[:, 0].norm(dim=-1, keepdim=True)
            assert torch.allclose(cluster.key, data[:, 0].sum(0), atol=1e-4)
            assert torch.allclose(cluster.value, data[:, 1].sum(0), atol=1e-4)
            assert torch.allclose(cluster.unit, norm.sum(0), atol=1e-4)
            frames, places = one.table.lookup(cluster.slab.tokens)
            assert (cluster.frame, cluster.first, cluster.last) == (frames.sum(), frames.min(), frames.max())
            assert np.array_equal(cluster.place, places.sum(1))
        owned = {c.owner for c in clusters} - {NOBODY}
        assert owned <= {c.id for c in clusters if c.marked}


def check_index(index: LayerIndex) -> None:
    """What was kept row by row is what all partitions give at once, and is theirs."""
    nothing = LayerIndex.empty(SHAPE.width, SHAPE.axes, torch.float32)
    whole = nothing.changed(dict(enumerate(index.partitions)))
    for name in ("keys", "counts"):
        assert torch.equal(getattr(index, name), getattr(whole, name))
    assert np.array_equal(index.frames, whole.frames)
    for name in ("keys", "values"):
        assert torch.equal(getattr(index.table, name), getattr(whole.table, name))
    for name in ("counts", "ids", "frames", "places", "starts"):
        assert np.array_equal(getattr(index.table, name), getattr(whole.table, name))
    every = [cluster for part in index.partitions if part is not None for cluster in part.clusters]
    assert index.clusters(np.arange(len(every))) == tuple(every)
    assert index.table.ids.tolist() == [cluster.id for cluster in every]
    assert index.table.counts.tolist() == [cluster.count for cluster in every]
    for place, part in enumerate(index.partitions):
        clusters = () if part is None else part.clusters
        assert int(index.counts[place]) == sum(c.count for c in clusters)
        if clusters:
            total = torch.stack([c.key for c in clusters]).sum(0)
            assert torch.equal(index.keys[place], in_half(total / sum(c.count for c in clusters)))
            assert (index.frames[0, place], index.frames[1, place]) == (
                min(c.first for c in clusters),
                max(c.last for c in clusters),
            )


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 999), st.sampled_from(list(SplitMode)), st.sampled_from(list(ThresholdRule)), st.booleans()
)
def test_every_token_is_in_one_cluster(
    seed: int, mode: SplitMode, rule: ThresholdRule, cramped: bool
) -> None:
    bound = 0 if cramped else SMALL.resident_bytes
    one = memory(replace(SMALL, split=mode, rule=rule, resident_bytes=bound))
    for index in range(14):
        play(one, 1, seed=seed, first=index)
        check(one)
    assert len(one.clusters(0)) > 4


def test_tokens_lie_in_the_slab_as_they_were_born() -> None:
    one, seed = memory(), 3
    play(one, 12, seed=seed)
    for layer in range(SHAPE.layers):
        for cluster in one.clusters(layer):
            for place, token in enumerate(cluster.slab.tokens[:3].tolist()):
                index, row = divmod(token, 15)
                told = block(index, seed=seed, scene=scene_of(index, seed))
                assert torch.equal(cluster.slab.data[place, 0], told.keys[layer, :, row])
                assert torch.equal(cluster.slab.data[place, 1], told.values[layer, :, row])


def test_splits_wait_for_a_fetch_where_the_cluster_is_away() -> None:
    deferred = memory(replace(SMALL, resident_bytes=0))
    play(deferred, 14, seed=1, asks=0)
    assert deferred.count.splits == 0
    assert deferred.count.deferred > 0
    marked = [c.id for c in deferred.clusters(0) if c.marked]
    waiting = sum(c.owner in marked for c in deferred.clusters(0))
    assert waiting
    deferred.settle({0: marked})
    check(deferred)
    assert deferred.count.splits > 0
    assert not any(c.owner in marked for c in deferred.clusters(0))


def test_waiting_groups_are_bounded() -> None:
    one = memory(replace(SMALL, resident_bytes=0, waiting=6))
    play(one, 14, seed=1, asks=0)
    waiting = [c for c in one.clusters(0) if c.owner != NOBODY]
    assert waiting
    assert len({c.owner for c in waiting}) == len(waiting)
    assert all(c.count <= 15 for c in waiting)
    assert one.count.promoted > 0
    assert one.count.splits == 0


@pytest.mark.slow
def test_deferring_splits_less_than_eager() -> None:
    counts = {}
    for mode in SplitMode:
        one = memory(replace(SMALL, split=mode, resident_bytes=0))
        play(one, 30, seed=2, asks=5)
        counts[mode] = one.count
    assert counts[SplitMode.DEFERRED].splits < counts[SplitMode.EAGER].splits
    assert counts[SplitMode.DEFERRED].moved_bytes < counts[SplitMode.EAGER].moved_bytes


def test_a_resident_cluster_is_split_once_when_it_rests_or_leaves() -> None:
    resting = memory(replace(SMALL, resident_bytes=1 << 20, rest=18))
    play(resting, 8, seed=1, asks=0)
    grown = {number: place for number, place in resting.wide.items() if place[0] == 0}
    assert grown
    assert resting.count.splits == 0
    for index in range(8, 20):
        resting.add(block(index, seed=1, scene=7))
    check(resting)
    assert not {c.id for c in resting.clusters(0)} & grown.keys()
    # With less room what was wide is split on its way off the device: nothing is fetched for it.
    leaving = memory(replace(SMALL, resident_bytes=40 * SHAPE.token_bytes, rest=10_000))
    play(leaving, 20, seed=1, asks=0)
    check(leaving)
    assert leaving.count.splits > 0
    assert leaving.count.moved_bytes == 0
    eager = memory(replace(SMALL, split=SplitMode.EAGER))
    play(eager, 20, seed=1, asks=0)
    assert resting.count.splits < eager.count.splits


def test_the_same_records_make_the_same_memory() -> None:
    one, two = memory(), memory()
    play(one, 16, seed=4)
    play(two, 16, seed=4)
    assert state(one) == state(two)


def test_a_snapshot_stays_as_it_was() -> None:
    one = memory()
    play(one, 10, seed=5)
    shot = one.snapshot()

    def shown() -> list[object]:
        return [
            (c.id, c.slab.tokens.tolist(), c.slab.data.flatten().tolist())
            for index in shot.layers
            for part in index.partitions
            if part is not None
            for c in part.clusters
        ] + [shot.token_frame.tolist()]

    before = shown()
    play(one, 8, seed=5, first=10)
    one.forget(0, 2_000_000)
    assert shown() == before


def test_a_byte_budget_drops_the_oldest_kv() -> None:
    limit = 60 * SHAPE.token_bytes * SHAPE.layers + 30 * SHAPE.token_bytes * SHAPE.layers
    one = memory(keep=Keep(bytes=limit))
    for index in range(20):
        play(one, 1, seed=6, first=index)
        check(one)
        assert one.kv_bytes <= limit
    assert one.covered_from_us is not None
    assert one.covered_from_us > 0
    assert len(one.table.embeddings) == 20


def test_a_horizon_drops_what_is_older() -> None:
    one = memory(keep=Keep(seconds=12))
    play(one, 20, seed=6)
    check(one)
    assert one.covered_from_us is not None
    assert one.covered_from_us + 1_500_000 >= 60 * 500_000 - 13_000_000


def test_an_erased_range_is_gone_wholly() -> None:
    one = memory()
    play(one, 14, seed=7)
    begin, end = 3_000_000, 9_000_000
    erased = one.forget(begin, end)
    assert erased > 0
    times = one.table.times_us.all
    for layer in range(SHAPE.layers):
        for cluster in one.clusters(layer):
            told = times[one.table.lookup(cluster.slab.tokens)[0]]
            assert not ((told >= begin) & (told < end)).any()
            data = cluster.slab.data.reshape(cluster.count, 2, -1)
            assert torch.allclose(cluster.key, data[:, 0].sum(0), atol=1e-4)
    embeddings = torch.cat(one.table.embeddings)
    assert not embeddings[torch.from_numpy((times >= begin) & (times < end))].any()
    play(one, 6, seed=7, first=14)


def test_wrong_blocks_are_refused_with_their_cause() -> None:
    one = memory()
    one.add(block(0))
    with pytest.raises(HistoryError, match="not later than the memory"):
        one.add(block(0))
    wrong = block(1)
    with pytest.raises(HistoryError, match="but this memory needs"):
        one.add(replace(wrong, keys=wrong.keys[:1]))
    with pytest.raises(HistoryError, match="each epoch has its own memory"):
        one.add(replace(block(1), stream="gate/1"))


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("2h", Keep(seconds=7200)),
        ("90min", Keep(seconds=5400)),
        ("500MB", Keep(bytes=500 << 20)),
        (7, Keep(bytes=7)),
    ],
)
def test_what_to_keep_is_a_duration_or_a_size(text: str | int, keep: Keep) -> None:
    assert Keep.parse(text) == keep


@pytest.mark.parametrize("text", ["", "long", "-3h", "0h", "2 weeks"])
def test_nonsense_is_not_a_duration(text: str) -> None:
    with pytest.raises(HistoryError, match="neither a duration such as"):
        Keep.parse(text)
