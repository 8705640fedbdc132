"""Keeps erased tensors from being made again."""

from __future__ import annotations

from lookout.past.erasures.fence import Fence
from lookout.runtime.store import LineageBrokenError
from lookout.v1.lineage_pb2 import TensorRef


def check_fence(fence: Fence, ref: TensorRef, wall_offset_us: int, start_us: int, end_us: int) -> None:
    """Check that a tensor's time was not erased.

    Args:
        fence: Erased times.
        ref: The tensor.
        wall_offset_us: Clock offset: wall time minus stream time.
        start_us: Stream time of its first frame.
        end_us: Stream time after its last one.

    Raises:
        LineageBrokenError: The time was erased.
    """
    erasure = fence.hides(ref.camera, wall_offset_us + start_us, wall_offset_us + end_us)
    if erasure is not None:
        raise LineageBrokenError(f"{ref.id}: erased ({erasure.id})")
