"""Prevents erased tensors from being computed again."""

from __future__ import annotations

from lookout.past.erasures.fence import Fence
from lookout.runtime.store import LineageBrokenError
from lookout.v1.lineage_pb2 import TensorRef


def check_fence(fence: Fence, ref: TensorRef, wall_offset_us: int, start_us: int, end_us: int) -> None:
    """Check that no part of a tensor's time was erased.

    Args:
        fence: The erased time ranges.
        ref: The tensor.
        wall_offset_us: Clock offset in microseconds: wall time minus stream time.
        start_us: Stream time of the tensor's first frame, microseconds.
        end_us: Stream time at which the tensor's last frame ends, microseconds.

    Raises:
        LineageBrokenError: An erasure overlaps the tensor's time.
    """
    erasure = fence.hides(ref.camera, wall_offset_us + start_us, wall_offset_us + end_us)
    if erasure is not None:
        raise LineageBrokenError(f"{ref.id}: its time was erased by erasure {erasure.id}")
