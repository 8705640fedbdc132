"""Moves clusters to the device."""

from __future__ import annotations

from typing import Any

import torch

from lookout.past.memory import Cluster
from lookout.past.memory.prefetch import Move


def mover(device: torch.device) -> Move:
    """Return a function that moves a cluster to the device in one copy.

    For a CPU device, memory is used in place, and a cluster on disk is read. Otherwise a cluster goes through
    pinned memory on a separate stream.
    """
    if device.type == "cpu":
        return lambda cluster: cluster.slab.data.clone() if cluster.slab.on_disk else cluster.slab.data
    return streamed(device)


def streamed(device: torch.device) -> Move:
    """Return a function that copies on a separate stream, in parallel to the calling thread's current stream.

    The calling thread waits for its copy. Predicted clusters are moved on a separate thread, so that only
    what was not predicted holds up the compute. Memory is not pinned if the device shares the host's memory.
    """
    module: Any = torch.get_device_module(device)
    side, compute = module.Stream(), module.current_stream()
    shared = device.type == "cpu"

    def move(cluster: Cluster) -> torch.Tensor:
        host = cluster.slab.data
        host = host if shared else host.pin_memory()
        with module.stream(side):
            out = host.to(device, non_blocking=True, copy=True)
        if shared:
            module.synchronize()
            return out
        side.synchronize()
        # The result's memory belongs to the side stream; it must not be reused before the compute reads it.
        out.record_stream(compute)
        return out

    return move
