"""Replaces hidden pixels of decoded frames with grey."""

from __future__ import annotations

from typing import Final

import av
import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.bool_]

_PLANAR: Final = ("yuv4", "yuvj4", "gray", "nv12", "gbrp")
#: pixels over which a conversion to another format may spread colour
_SPREAD: Final = 4


def greyed(frame: av.VideoFrame, hidden: Bits) -> av.VideoFrame:
    """Return a copy of a frame with grey in place of hidden pixels. The frame itself is not changed, because
    the decoder may still refer to it.

    A colour sample that a hidden pixel shares with visible ones becomes grey as well.

    Args:
        frame: A decoded frame.
        hidden: bool [height, width].

    Returns:
        The copy, in the frame's format if its planes can be written one by one, else in RGB.
    """
    bits = {component.bits for component in frame.format.components}
    name = frame.format.name
    planes_fit = len(bits) == 1 and name.startswith(_PLANAR) and (bits == {8} or name.endswith("le"))
    if not planes_fit:
        return _greyed_rgb(frame, hidden)
    (depth,) = bits
    copy = av.VideoFrame(frame.width, frame.height, name)
    copy.colorspace, copy.color_range = frame.colorspace, frame.color_range
    samples = np.dtype(np.uint8 if depth == 8 else "<u2")
    for index, (plane, own) in enumerate(zip(frame.planes, copy.planes, strict=True)):
        # The colour plane of nv12 has two samples where planes of other formats have one.
        paired = 2 if name == "nv12" and index else 1
        source, target = (
            np.frombuffer(buffer, samples).reshape(-1, buffer.line_size // samples.itemsize)
            for buffer in (plane, own)
        )
        height, width = plane.height, plane.width * paired
        covered = shrunk(hidden, plane.width, plane.height)
        if paired > 1:
            covered = np.repeat(covered, paired, axis=1)
        target[:height, :width] = np.where(covered, 1 << (depth - 1), source[:height, :width])
    return copy


def shrunk(hidden: Bits, width: int, height: int) -> Bits:
    """Return which samples of a plane of this size are hidden: all that cover a hidden pixel."""
    down, across = -(-hidden.shape[0] // height), -(-hidden.shape[1] // width)
    if (down, across) == (1, 1):
        return hidden
    padded = np.pad(hidden, ((0, height * down - hidden.shape[0]), (0, width * across - hidden.shape[1])))
    covering = np.zeros((height, width), np.bool_)
    for row in range(down):  # many times faster than `any` over two axes, and it runs for every picture
        for column in range(across):
            covering |= padded[row::down, column::across]
    return covering


def _greyed_rgb(frame: av.VideoFrame, hidden: Bits) -> av.VideoFrame:
    pixels = frame.to_ndarray(format="rgb24")
    height, width = hidden.shape
    padded, size = np.pad(hidden, _SPREAD), 2 * _SPREAD + 1
    wide = np.logical_or.reduce([padded[:, at : at + width] for at in range(size)])
    pixels[np.logical_or.reduce([wide[at : at + height] for at in range(size)])] = 128
    return av.VideoFrame.from_ndarray(pixels, format="rgb24")
