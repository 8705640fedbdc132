"""Converts decoded frames to model-input pixels and luma planes."""

from __future__ import annotations

import math

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import Interpolation, VideoReformatter

from lookout.video.motion.geometry import Fit, Geometry
from lookout.video.motion.hiding import PictureMask
from lookout.video.motion.side_data import side_data
from lookout.video.segments.container import Video
from lookout.video.segments.greying import greyed

U8 = npt.NDArray[np.uint8]


def orientation(frame: av.VideoFrame) -> tuple[int, bool]:
    """Return (degrees clockwise, mirrored first) that brings a frame upright: its display matrix, rounded to
    multiples of 90 degrees."""
    side = side_data(frame, "DISPLAYMATRIX")
    if side is None:
        return 0, False
    # Three numbers per row; the third is not needed. A negative determinant means mirroring.
    a, b, _, c, d = np.frombuffer(side, np.int32)[:5].astype(float)
    mirrored = bool(a * d - b * c < 0)
    if mirrored:
        a, b = -a, -b
    return round(math.degrees(math.atan2(b, a)) / 90) * 90 % 360, mirrored


def keyframe_picture(video: Video, keyframe: av.Packet) -> av.VideoFrame | None:
    """Decode a keyframe, even if an edit list hides its picture, and drain the decoder. None if the keyframe
    cannot be decoded."""
    # A copy of the packet, because the decoder returns no picture for one marked as hidden.
    frames = [*video.decode(av.Packet(bytes(keyframe))), *video.decode(None)]
    return frames[0] if frames else None


def turn_of(video: Video, keyframe: av.Packet) -> tuple[int, bool]:
    """Return the `orientation` of a keyframe's picture; (0, False) if it cannot be decoded."""
    picture = keyframe_picture(video, keyframe)
    return orientation(picture) if picture is not None else (0, False)


def frame_geometry(frame: av.VideoFrame, width: int, height: int, fit: Fit) -> Geometry:
    """Return the geometry that maps this frame to a model input of width x height."""
    rotation, mirror = orientation(frame)
    return Geometry.fitted(
        (frame.width, frame.height), (width, height), fit, rotation=rotation, mirror=mirror
    )


def placed(scaled: U8, geometry: Geometry) -> U8:
    """Turn a scaled picture upright and put it onto a black model input: uint8 [height, width, 3]."""
    x, y, w, h = geometry.place
    if geometry.mirror:
        scaled = scaled[:, ::-1]
    upright = np.rot90(scaled, -geometry.rotation // 90)
    size = (geometry.out_height, geometry.out_width)
    if (y, x, h, w) == (0, 0, *size):
        return np.ascontiguousarray(upright)
    out = np.zeros((*size, 3), np.uint8)
    top, left = max(0, y), max(0, x)
    visible = upright[top - y : size[0] - y, left - x : size[1] - x]
    out[top : top + visible.shape[0], left : left + visible.shape[1]] = visible
    return out


class Painter:
    """Converts frames to RGB at model-input size. It keeps FFmpeg's scaler between frames, so use one painter
    per thread.

    All pixels of decoded frames come from painters, so masks are applied here and nowhere else.

    Args:
        mask: Areas that are grey in every picture; None: no mask.
    """

    def __init__(self, mask: PictureMask | None = None) -> None:
        self._reformatter = VideoReformatter()
        self._mask = mask

    def paint(self, frame: av.VideoFrame, geometry: Geometry) -> U8:
        """Return uint8 [out_height, out_width, 3]: masked, area-averaged, turned and placed, in this
        order."""
        frame = self._shown(frame, geometry)
        _, _, w, h = geometry.place
        across, down = (h, w) if geometry.rotation in (90, 270) else (w, h)
        scaled = self._reformatter.reformat(
            frame, width=across, height=down, format="rgb24", interpolation=Interpolation.AREA, threads=1
        ).to_ndarray()
        return placed(np.asarray(scaled, np.uint8), geometry)

    def luma(self, frame: av.VideoFrame, geometry: Geometry) -> U8:
        """Return uint8 [height, width]: the luma plane; a view of the frame if it is 8-bit planar."""
        frame = self._shown(frame, geometry)
        name, bits = frame.format.name, frame.format.components[0].bits
        if name.startswith(("yuv4", "yuvj4", "nv12")) and (bits == 8 or name.endswith("le")):
            plane, sample = frame.planes[0], np.dtype(np.uint8 if bits == 8 else "<u2")
            # Rows are padded for alignment.
            rows = np.frombuffer(plane, sample).reshape(-1, plane.line_size // sample.itemsize)
            luma = rows[: frame.height, : frame.width]
            return np.asarray(luma if bits == 8 else luma >> (bits - 8), np.uint8)
        grey = self._reformatter.reformat(frame, format="gray", threads=1).to_ndarray()
        return np.asarray(grey, np.uint8)

    def _shown(self, frame: av.VideoFrame, geometry: Geometry) -> av.VideoFrame:
        """Return a frame with its mask applied: hidden pixels turn grey before they are averaged with
        others."""
        return frame if self._mask is None else greyed(frame, self._mask.hidden(geometry))
