"""A decoder that gives other pixels and other motion wherever a mask hides them.

A sandboxed process imports `tests.flip_now` with the modules that its requests need
(`SandboxSettings.modules`). From then on FFmpeg's frames are changed before anything of the project sees
them; outside of what the mask hides they stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import av
import numpy as np
import numpy.typing as npt

from lookout.video.motion import Geometry, MaskLayer, PictureMask, PredictionBlocks
from lookout.video.motion.types import VectorSource
from lookout.video.segments import decoded_frame, masked_clip
from lookout.video.segments.container import Video
from lookout.video.segments.picture import orientation

MASK = PictureMask((MaskLayer(hide=(((0.1, 0.2), (0.55, 0.25), (0.5, 0.8), (0.2, 0.7)),)),))
_decode, _vectors, _frames = Video.decode, decoded_frame.exported_vectors, masked_clip._frames


def _hidden(frame: av.VideoFrame) -> npt.NDArray[np.bool_]:
    rotation, mirror = orientation(frame)
    size = frame.width, frame.height
    return MASK.hidden(Geometry.fitted(size, (16, 16), rotation=rotation, mirror=mirror))


def flipped(frame: av.VideoFrame) -> av.VideoFrame:
    """The frame with every hidden pixel inverted; the decoder's own copy stays as it is."""
    frame.make_writable()
    hidden = _hidden(frame)
    for plane in frame.planes:
        own = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height, : plane.width]
        step = hidden.shape[0] // plane.height, hidden.shape[1] // plane.width
        inside = hidden[:: step[0], :: step[1]][: plane.height, : plane.width]
        own[inside] ^= 0xFF
    return frame


def _other_vectors(frame: av.VideoFrame) -> VectorSource | None:
    source = _vectors(frame)
    if source is None:
        return None
    blocks, hidden = source.blocks(), _hidden(frame)
    rows = np.clip(blocks.y + blocks.h // 2, 0, hidden.shape[0] - 1)
    inside = hidden[rows, np.clip(blocks.x + blocks.w // 2, 0, hidden.shape[1] - 1)]
    dx, dy = blocks.dx.copy(), blocks.dy.copy()
    dx[inside] += 17
    dy[inside] -= 5
    return PredictionBlocks(blocks.x, blocks.y, blocks.w, blocks.h, dx, dy, blocks.kind, blocks.source)


def _decode_flipped(video: Video, packet: av.Packet | None) -> list[av.VideoFrame]:
    return [flipped(frame) for frame in _decode(video, packet)]


def _frames_flipped(data: bytes, shown_us: Collection[int]) -> Iterator[av.VideoFrame]:
    return map(flipped, _frames(data, shown_us))


def begin() -> None:
    """Change every frame from now on."""
    Video.decode = _decode_flipped  # type: ignore[method-assign]
    decoded_frame.exported_vectors = _other_vectors  # type: ignore[assignment]
    masked_clip._frames = _frames_flipped
