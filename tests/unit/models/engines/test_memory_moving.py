"""Clusters move to the device as they are, also over a stream of their own (run here on the CPU's stand-in
for streams: the same code without pinned memory)."""

from __future__ import annotations

import pytest
import torch

from lookout.models.engines.transformers.memory.moving import mover, streamed
from lookout.past.memory import Prefetcher
from tests.unit.past.memory.records import memory, play

DEVICES = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_stream_of_its_own_moves_the_same_bytes(device: torch.device) -> None:
    one = memory()
    play(one, 10)
    clusters = one.clusters(0)
    assert len(clusters) > 3
    move = streamed(device)
    for cluster in clusters:
        moved = move(cluster)
        assert moved.device.type == device.type
        assert moved.data_ptr() != cluster.slab.data.data_ptr()
        assert torch.equal(moved.cpu(), cluster.slab.data)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_foreseen_clusters_move_on_the_stream_and_the_rest_is_completed(device: torch.device) -> None:
    one = memory()
    play(one, 10)
    clusters = one.clusters(1)
    with Prefetcher(streamed(device), lambda cluster: False) as moving:
        moving.foresee(1, clusters[:3])
        data, told = moving.complete(1, clusters[1:5], len(clusters))
    assert [torch.equal(x.cpu(), c.slab.data) for x, c in zip(data, clusters[1:5], strict=True)] == [True] * 4
    assert (told.early_copies, told.late_copies, told.wasted_copies) == (2, 2, 1)


def test_on_the_host_nothing_is_copied_but_what_lies_in_files() -> None:
    one = memory()
    play(one, 8)
    cluster = one.clusters(0)[0]
    assert mover(torch.device("cpu"))(cluster).data_ptr() == cluster.slab.data.data_ptr()
