"""How a cluster gets to the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lookout.memory import (
    Cluster,
)


def mover(device: torch.device) -> Callable[[Cluster], torch.Tensor]:
    """How a cluster gets to the device: one copy. On CPU memory is the device, and what is read from a file
    is read here; on CUDA through pinned memory on a stream of its own."""
    if device.type == "cpu":
        return lambda cluster: cluster.slab.data.clone() if cluster.slab.on_disk else cluster.slab.data
    cuda: Any = torch.cuda
    side = cuda.Stream(device)

    def move(cluster: Cluster) -> torch.Tensor:
        pinned = cluster.slab.data.pin_memory()
        with cuda.stream(side):
            out = pinned.to(device, non_blocking=True)
        side.synchronize()
        return out

    return move
