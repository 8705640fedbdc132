"""Masks segments in sandboxed processes before they are published."""

from __future__ import annotations

import sys
from typing import Final

from lookout.cores import usable_cores
from lookout.errors import LookoutError
from lookout.rules.masks import Masks
from lookout.video.sandbox import SandboxPool, SandboxSettings
from lookout.video.segments.types import CodecError

#: memory limit of a masking process, in bytes (the maximum measured with 1080p was 146 MB)
PROCESS_BYTES: Final = 256 << 20


class MaskingError(LookoutError):
    """A segment cannot be masked, so it is not published; the message says why."""


class Masking:
    """Applies privacy masks to the segments of cameras that ask for masking before publishing. Thread-safe.

    Masking processes start when the first segment is masked.

    Args:
        masks: The masks of all cameras.
        max_bytes: Maximum bytes of a masked segment.
    """

    def __init__(self, masks: Masks, max_bytes: int) -> None:
        self._masks, self._max_bytes = masks, max_bytes
        strict = sys.platform == "linux"
        self._pool = SandboxPool(workers(), SandboxSettings(strict=strict))

    def masked(self, camera: str, segment: bytes, captured_ms: int) -> bytes:
        """Return a segment with the camera's mask applied.

        Args:
            camera: The camera's id.
            segment: The segment as it was filmed.
            captured_ms: Start of the segment, Unix milliseconds.

        Returns:
            The masked segment; the segment itself if the camera's mask was lifted.

        Raises:
            MaskingError: The camera has no mask, or the segment could not be decoded or re-encoded.
        """
        if not self._masks.known(camera):
            raise MaskingError(
                "not published: the camera asks for masking before publishing but has no mask; draw one in "
                "the console, or use `lookout camera mask set`"
            )
        applied = self._masks.filmed(camera, captured_ms * 1000)
        if applied.mask is None:
            return segment
        try:
            return self._pool.masked(segment, applied.mask, self._max_bytes)
        except CodecError as error:
            raise MaskingError(f"not published: the segment could not be masked ({error})") from None

    def close(self) -> None:
        """End the processes."""
        self._pool.close()


def workers() -> int:
    """Return the number of masking processes."""
    return usable_cores()
