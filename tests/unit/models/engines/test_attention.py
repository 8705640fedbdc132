"""The block layout of scattered rows: right for any rows, and no dearer than the rows computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from bench.row_policies import CACHEBLEND, VLCACHE
from lookout.models.engines import Question, WindowRequest
from lookout.models.engines.transformers import attention
from lookout.models.engines.transformers.attention import CHUNK, chunks_of, few_rows, sdpa
from lookout.models.windows import Planner, Policy, WindowSettings
from tests.unit.models.engines.scenes import block, engine

N = 300


@pytest.mark.parametrize("held", [1, 1 << 20])
def test_few_rows_attend_like_the_fused_call(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "IN_CACHE", held)
    torch.manual_seed(3)
    query, key, value = (torch.randn(heads, n, 16).double() for heads, n in ((6, 5), (2, N), (2, N)))
    mask = torch.zeros(5, N).double()
    mask[:, -5:] = torch.full((5, 5), float("-inf")).triu(1)
    want = sdpa(query, key, value, mask, 0.25)
    torch.testing.assert_close(few_rows(query, key, value, mask, 0.25), want, atol=1e-12, rtol=1e-12)


RUNS = st.lists(st.tuples(st.integers(0, N - 1), st.integers(0, N)), max_size=2)


@given(st.sets(st.integers(0, N - 1), min_size=1), RUNS, st.booleans(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_chunks_attend_like_one_dense_masked_call(
    rows: set[int], runs: list[tuple[int, int]], host: bool, unbroken: bool
) -> None:
    torch.manual_seed(len(rows))
    places = sorted(rows.union(*(range(start, min(N, start + size)) for start, size in runs)))
    where = torch.tensor(places)
    query, key, value = (torch.randn(heads, n, 16) for heads, n in ((4, len(places)), (2, N), (2, N)))
    seen = torch.arange(N)[None] <= where[:, None]
    score = (query @ key.repeat_interleave(2, 0).transpose(1, 2) * 0.25).masked_fill(~seen, float("-inf"))
    want = (score.softmax(-1) @ value.repeat_interleave(2, 0)).transpose(0, 1)
    chunks = chunks_of(where, places if host else None, N, torch.float32, unbroken=unbroken)
    got = [
        sdpa(query[:, c.start : c.stop], key[:, : c.limit], value[:, : c.limit], c.mask, 0.25) for c in chunks
    ]
    torch.testing.assert_close(torch.cat(got), want, atol=1e-5, rtol=1e-4)
    assert [c.start for c in chunks] == [0, *(c.stop for c in chunks)][:-1]
    assert chunks[-1].stop == len(places)


def test_reading_follows_the_rows_computed() -> None:
    """Anchors and a new block of a long window: keys read stay near those that are seen."""
    n, stride, anchor = 8000, 1600, 260
    rows = np.concatenate(
        [np.arange(s, s + anchor) for s in range(0, n - stride, stride)] + [np.arange(n - 600, n)]
    )
    chunks = chunks_of(torch.from_numpy(rows), rows.tolist(), n, torch.float32)
    read = sum((c.stop - c.start) * c.limit for c in chunks)
    assert read < 1.05 * int(np.sum(rows + 1))
    assert max(c.stop - c.start for c in chunks) <= CHUNK
    half = chunks_of(torch.from_numpy(rows[::2]), rows[::2].tolist(), n, torch.float32)
    assert sum((c.stop - c.start) * c.limit for c in half) < 0.55 * read


def test_unbroken_rows_are_one_call_without_a_mask() -> None:
    """What `front` computes behind the prefix, and the new block: two causal calls on an accelerator."""
    rows = [*range(20, 900), *range(1800, 2000)]
    chunks = chunks_of(torch.tensor(rows), rows, 2000, torch.float32, unbroken=True)
    assert [(c.start, c.stop, c.limit, c.mask) for c in chunks] == [
        (0, 880, 900, None),
        (880, 1080, 2000, None),
    ]
    on_cpu = chunks_of(torch.tensor(rows), rows, 2000, torch.float32)
    assert max(c.stop - c.start for c in on_cpu) <= CHUNK
    assert all(c.mask is not None for c in on_cpu)


READING = (
    "aten::item",
    "aten::is_nonzero",
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
)


class Reads(TorchDispatchMode):
    """Counts the operations that would stop a GPU to read a value back."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.name().partition(".")[0] in READING
        return func(*args, **(kwargs or {}))


def test_indices_reach_the_device_in_one_transfer_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many streams and questions a pass has; a stream whose rows move sends their places too."""
    runner = engine("qwen3_vl")
    planner = Planner(runner.layout, WindowSettings(3, key_every=1000))
    streams, plans = ("cam/0", "cam/1", "cam/2"), dict[str, Any]()
    transfers: list[int] = []
    send = torch.from_numpy

    def counted(array: Any) -> torch.Tensor:
        transfers[-1] += 1
        return send(array)

    for number in range(4):
        requests = []
        for name in streams:
            blocks = [block("qwen3_vl", name, i, frames=3) for i in range(max(0, number - 2), number + 1)]
            plans[name] = planner.plan(blocks, plans.get(name))
            requests.append(WindowRequest(plans[name], blocks, [Question("q", "?"), Question("r", "!")]))
        transfers.append(0)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "from_numpy", counted)
            for answer in runner.run(requests):
                answer.unwrap()
    for name in streams:
        runner.close_stream(name)
    assert (transfers[0], transfers[-1]) == (1, 1 + 2 * len(streams))


def test_nothing_is_read_back_before_the_answers() -> None:
    runner = engine("qwen3_vl")
    for policy in (Policy.REFRESH, CACHEBLEND, VLCACHE):
        planner = Planner(runner.layout, WindowSettings(3, policy, key_every=1000))
        plan = None
        for number in range(4):
            blocks = [block("qwen3_vl", "cam/0", i, frames=3) for i in range(max(0, number - 2), number + 1)]
            plan = planner.plan(blocks, plan)
            with Reads() as reads:
                runner.run([WindowRequest(plan, blocks, [Question("q", "?")])])[0].unwrap()
            assert reads.count == 1, "only the check that the answers are finite"
        runner.close_stream("cam/0")
