"""One decoded frame, independent of the back end that decoded it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import av

from lookout.video.motion.prediction import exported_vectors
from lookout.video.motion.types import Picture, VectorSource
from lookout.video.segments.picture import orientation

if TYPE_CHECKING:
    from lookout.video.segments.surface import Surface  # imports torch


@dataclass(slots=True)
class DecodedFrame:
    """A decoded frame.

    pts: ticks or None; turn: (degrees clockwise, mirrored first) that brings it upright; blocks: its motion
    vectors. `turn` and `blocks` are computed on demand.
    """

    pts: int | None
    picture: Picture
    key: bool
    corrupt: bool
    interlaced: bool
    frame: av.VideoFrame | Surface
    turn: Callable[[], tuple[int, bool]]
    blocks: Callable[[], VectorSource | None]

    @classmethod
    def of(cls, frame: av.VideoFrame) -> DecodedFrame:
        """Return a frame of the software decoder."""
        return cls(
            pts=frame.pts if frame.pts is not None else frame.dts,
            picture=Picture(frame.pict_type),
            key=bool(frame.key_frame),
            corrupt=bool(frame.is_corrupt),
            interlaced=bool(frame.interlaced_frame),
            frame=frame,
            turn=lambda: orientation(frame),
            blocks=lambda: exported_vectors(frame),
        )

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the coded picture."""
        return self.frame.width, self.frame.height
