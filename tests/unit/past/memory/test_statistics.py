"""Online statistics equal batch statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from lookout.past.memory.statistics import kmeans, limit, nearest, scores_of, unit, unit_variance
from lookout.past.memory.types import ThresholdRule


@given(st.integers(0, 10_000), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_unit_variance_from_sums_equals_the_members(seed: int, batches: list[int]) -> None:
    draw = torch.Generator().manual_seed(seed)
    parts = [unit(torch.randn(n, 5, generator=draw, dtype=torch.float64)) for n in batches]
    total = torch.zeros(5, dtype=torch.float64)
    for part in parts:
        total = total + part.sum(0)
    x = torch.cat(parts)
    found = unit_variance(total[None], torch.tensor([len(x)]))[0]
    assert torch.allclose(found, ((x - x.mean(0)) ** 2).sum(1).mean(), atol=1e-12)


def test_the_two_readings_of_the_limit_pull_apart() -> None:
    count = torch.tensor([1, 100, 10_000])
    formula = limit(count, 1.0, 2.0, 50.0, ThresholdRule.FORMULA)
    words = limit(count, 1.0, 2.0, 50.0, ThresholdRule.WORDS)
    assert formula[0] < formula[1] < formula[2]
    assert words[0] > words[1] > words[2]
    assert formula[2] == pytest.approx(2.0)
    assert words[2] == pytest.approx(1.0)


def test_kmeans_finds_directions_whatever_their_length() -> None:
    draw = torch.Generator().manual_seed(1)
    truth = torch.randint(0, 3, (60,), generator=draw)
    lengths = torch.rand(60, 1, generator=draw) * 9 + 0.1
    x = torch.eye(3, 8)[truth] * lengths + 0.01 * torch.randn(60, 8, generator=draw)
    own = kmeans(unit(x), 3, seed=4)
    assert len(torch.unique(own)) == 3
    for group in range(3):
        assert len(torch.unique(own[truth == group])) == 1


def test_equal_seeds_give_equal_clusters() -> None:
    x = unit(torch.randn(100, 6, generator=torch.Generator().manual_seed(2)))
    assert torch.equal(kmeans(x, 7, seed=3), kmeans(x, 7, seed=3))


@pytest.mark.parametrize("distinct", [1, 2, 3, 5])
@pytest.mark.parametrize("width", [3, 64, 384])
def test_equal_rows_make_one_cluster_each(distinct: int, width: int) -> None:
    rows = unit(torch.randn(distinct, width, generator=torch.Generator().manual_seed(width)))
    own = kmeans(rows.repeat(9, 1), 7, seed=0)
    assert len(torch.unique(own)) == distinct
    assert torch.equal(own, own[:distinct].repeat(9))


def test_rounding_decides_no_tie() -> None:
    """Means of equal rows differ in the last bit, and a matrix product sums rows in several orders."""
    draw = torch.Generator().manual_seed(5)
    row, query = torch.randn(257, generator=draw), torch.randn(257, generator=draw)
    means = torch.stack([row.repeat(n, 1).sum(0) / n for n in range(1, 60)])
    other = torch.randn(3, 257, generator=draw)
    scores = scores_of(torch.cat([means, other]), query)
    assert len(np.unique(scores[: len(means)])) == 1
    exact = torch.cat([row[None], other]).double() @ query.double()
    assert np.array_equal(np.argsort(np.r_[scores[:1], scores[-3:]]), torch.argsort(exact).numpy())
    assert scores_of(other[:0], query).tolist() == []
    assert not nearest(unit(row)[None], unit(means)).any()
