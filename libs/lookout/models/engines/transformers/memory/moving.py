"""How a cluster gets to the device."""

from __future__ import annotations

from typing import Any

import torch

from lookout.past.memory import Cluster
from lookout.past.memory.prefetch import Move


def mover(device: torch.device) -> Move:
    """How a cluster gets to the device: one copy. On CPU memory is the device, and what is read from a file
    is read here; elsewhere through pinned memory on a stream of its own."""
    if device.type == "cpu":
        return lambda cluster: cluster.slab.data.clone() if cluster.slab.on_disk else cluster.slab.data
    return streamed(device)


def streamed(device: torch.device) -> Move:
    """Copies on a stream of their own, alongside the compute of the calling thread's present stream.

    The calling thread waits for its copy: a prediction moves on a thread of its own, so that only what was
    not foreseen holds the compute up. Memory is not pinned for a device that shares the host's.
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
        # Its memory belongs to the side stream: not to be used again before the compute has read it.
        out.record_stream(compute)
        return out

    return move
