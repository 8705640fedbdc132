"""Encodes a caller's own picture as the fleet would encode a frame, for searches by picture."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from lookout.models.vision import Tower
from lookout.models.window_defaults import SamplingNumbers
from lookout.models.windows import StrideBlock
from lookout.past.find.similar import RegionError
from lookout.past.find.types import JPEG, PICTURE_BYTES
from lookout.pruning import Sample, WholeFrames
from lookout.streams import decode_request, stream_blocks
from lookout.streams.blocks import StrideFrame
from lookout.video.sandbox import SandboxError, SandboxPool, SandboxSettings
from lookout.video.segments.stills import film
from lookout.video.segments.types import CodecError, Limits, Reason

_DECODE_S: Final = 10.0


class PictureError(RegionError):
    """A picture that cannot be decoded."""


class PictureEncoder:
    """Decodes pictures in a sandboxed process and encodes them without pruning.

    The tower is loaded, and the process is started, when the first picture arrives.

    Args:
        load: Loads the vision tower.
        sampling: The fleet's sampling.
    """

    def __init__(self, load: Callable[[], Tower], sampling: SamplingNumbers) -> None:
        self._load, self._sampling, self._lock = load, sampling, threading.Lock()
        self._tower: Tower | None = None
        self._pool: SandboxPool | None = None

    def block(self, picture: bytes) -> StrideBlock:
        """Return a stride block whose only frame is the picture.

        Args:
            picture: A JPEG from an untrusted caller.

        Raises:
            PictureError: The picture is not a JPEG, exceeds `PICTURE_BYTES`, or cannot be decoded.
            CodecError: No decoder is available now.
            VisionError: The tower cannot be loaded.
        """
        if len(picture) > PICTURE_BYTES or not picture.startswith(JPEG):
            raise PictureError(f"the picture must be a JPEG of at most {PICTURE_BYTES >> 20} MiB")
        with self._lock:
            if self._tower is None:
                self._tower = self._load()
            if self._pool is None:
                self._pool = SandboxPool(1, SandboxSettings(cpu_s=_DECODE_S, wall_s=2 * _DECODE_S))
            grid, sampling = self._tower.grid, self._sampling
            request = decode_request(
                grid.width, grid.height, frames=(0,), limits=Limits(bytes=2 * PICTURE_BYTES)
            )
            try:
                (pixels,) = self._pool.decode(film([picture]), request).pixels
            except (CodecError, SandboxError, ValueError) as error:
                if isinstance(error, CodecError) and error.reason is Reason.UNAVAILABLE:
                    raise
                raise PictureError(f"the picture cannot be decoded: {error}") from error
            (encoded,) = stream_blocks(
                "picture",
                [StrideFrame(Sample(pixels), 0, 0)],
                self._tower,
                WholeFrames(),
                samples=sampling.block_samples,
                step_us=sampling.step_us,
                window_blocks=sampling.window_blocks,
            )
        return encoded.block

    def close(self) -> None:
        """Stop the decoder process."""
        with self._lock:
            if self._pool is not None:
                self._pool.close()
                self._pool = None
