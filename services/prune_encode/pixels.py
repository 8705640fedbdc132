"""Fetches the pixels of a block's frames until the block's deadline, and again to recompute lost tokens."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import structlog

from lookout.errors import TransientError
from lookout.runtime.store import LineageBrokenError, StoreError, TensorClient, WaitBudget
from lookout.services.prune_encode.block import Missing
from lookout.services.prune_encode.blocks import BlockRecord, Member
from lookout.v1.lineage_pb2 import CAUSE_PIXELS_LOST
from lookout.v1.tokens_pb2 import StrideBlock

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BlockPixels:
    """The pixels of a block's frames that could be fetched.

    Attributes:
        pixels: uint8 [height, width, 3] of each frame in `frames`.
        frames: The block's frames whose pixels are available.
        missing: Why pixels of other frames are missing; None if no pixels are missing.
    """

    pixels: list[np.ndarray]
    frames: list[Member]
    missing: Missing | None = None


class PixelSource:
    """Fetches pixels. Thread-safe.

    Args:
        client: Fetches tensors.
        wait_s: Seconds after which a block is closed without the pixels that are not available.
        clock: Monotonic seconds.
    """

    def __init__(
        self, client: TensorClient, wait_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._waits = client, WaitBudget(wait_s, clock)

    def fetch(self, camera: str, epoch: int, index: int, frames: Sequence[Member]) -> BlockPixels:
        """Fetch the pixels of a block's frames.

        Args:
            camera: The camera's id.
            epoch: The block's epoch.
            index: The block's index.
            frames: The block's frames, in order.

        Raises:
            TransientError: Pixels are not available now, and the block's deadline has not passed.
        """
        fetched = BlockPixels([], [])
        missing: Missing | None = None
        # One fetch per segment, because a block's frames are consecutive within a segment.
        for source in {id(member.held): member.held for member in frames}.values():
            members = [member for member in frames if member.held is source]
            first, last = members[0].row, members[-1].row
            try:
                rows = self._client.fetch(
                    source.record.segment.pixels, source.record, rows=[(first, last + 1)]
                ).array
            except LineageBrokenError as error:
                missing = Missing(CAUSE_PIXELS_LOST, f"pixels are lost: {error}")
            except StoreError as error:
                why = self._waits.over(camera, (epoch, index), error)
                if not why:
                    raise TransientError(str(error)) from error
                missing = Missing(CAUSE_PIXELS_LOST, f"pixels {why}")
            else:
                fetched.pixels.extend(rows[member.row - first] for member in members)
                fetched.frames.extend(members)
                continue
            _log.warning(
                "frames are omitted from a block", record=str(source.ref.offset), reason=missing.reason
            )
        self._waits.done(camera)
        return BlockPixels(fetched.pixels, fetched.frames, missing)

    def again(self, block: StrideBlock, sources: Sequence[BlockRecord]) -> list[np.ndarray]:
        """Fetch the pixels of an already written block, by the rows in its record.

        Raises:
            StoreError: The pixels are not available.
        """
        pixels = []
        for frame in block.frames:
            source = sources[frame.input].record
            rows = [(frame.row, frame.row + 1)]
            pixels.append(self._client.fetch(source.segment.pixels, source, rows=rows).array[0])
        return pixels
