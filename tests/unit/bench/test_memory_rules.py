"""What other rules of retrieval read of a partial cluster."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bench.memory.policies import Flat
from bench.memory.rules import ORDERS, part_reader
from lookout.models.engines.transformers.memory.reading import ClusterReader
from lookout.past.memory import Prefetcher, RetrievalSettings, Retrieved
from lookout.past.memory.spans import FrameMask
from tests.unit.past.memory.records import block, memory, scene_of

BLOCKS, LAYER, BUDGET = 30, 1, 7
SETTINGS = RetrievalSettings(breadth=1.0, whole=0.0)


@pytest.mark.parametrize("rule", ORDERS)
def test_only_the_rows_of_the_partial_cluster_differ(rule: str) -> None:
    history = [block(index, scene=scene_of(index, 0)) for index in range(BLOCKS)]
    one = memory()
    for entry in history:
        one.add(entry)
    shot = one.snapshot()
    flat = Flat.of(history).until(shot.window[0].first_token)
    allowed = np.ones(len(shot.times_us), bool)
    allowed[10:14] = False
    query = torch.randn(one.shape.kv_heads * one.shape.head_dim, generator=torch.Generator().manual_seed(3))

    def read(make: object) -> Retrieved:
        with Prefetcher(None, lambda _: True, ahead=False) as prefetcher:  # type: ignore[arg-type]
            reader = make(shot, SETTINGS, prefetcher, [], span=FrameMask.of(allowed))  # type: ignore[operator]
            reader.budget = BUDGET
            found: Retrieved = reader._choose(LAYER, query)
            return found

    ours = read(ClusterReader)
    other = read(lambda *given, **more: part_reader(flat, ORDERS[rule], *given, **more))
    assert ours.rows is not None
    assert other.rows is not None
    assert [cluster.id for cluster in other.clusters] == [cluster.id for cluster in ours.clusters]
    ends = np.cumsum([cluster.count for cluster in ours.clusters])[:-1]
    cut = 0
    for cluster, mine, theirs in zip(
        ours.clusters, np.split(ours.rows, ends), np.split(other.rows, ends), strict=True
    ):
        tokens = cluster.slab.tokens
        may = allowed[flat.frames[tokens]]
        assert not (theirs & ~may).any()
        if mine.sum() == may.sum():
            assert (mine == theirs).all()
            continue
        cut += 1
        if rule == "whole clusters":
            assert not theirs.any()
            continue
        assert mine.sum() == theirs.sum()
        order = ORDERS[rule]
        assert order is not None
        scores = order(flat.keys[LAYER][torch.from_numpy(tokens[may])], query)
        assert scores[theirs[may]].min() >= scores[~theirs[may]].max()
    assert cut == 1
