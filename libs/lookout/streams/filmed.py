"""Decodes pictures for people from the segments that frames records refer to."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from lookout.streams.requests import decode_request
from lookout.v1.frames_pb2 import Picture, SegmentFrames
from lookout.video.motion import Fit, PictureMask
from lookout.video.motion.types import U8
from lookout.video.segments import DecodedSegment, DecodeRequest, Limits
from lookout.wire import MAX_MESSAGE_BYTES


class SegmentDecoder(Protocol):
    """Decodes segments, in a sandbox or in this process."""

    def decode(self, segment: bytes, request: DecodeRequest) -> DecodedSegment:
        """Return the requested frames of one segment.

        Raises:
            CodecError: The segment cannot be decoded.
        """
        ...


def filmed_pictures(
    decoder: SegmentDecoder,
    data: bytes,
    segment: SegmentFrames,
    rows: Collection[int],
    width: int,
    *,
    mask: PictureMask | None,
    whole: bool = False,
) -> dict[int, U8]:
    """Return the sampled pictures of a segment as they were filmed, with hidden areas masked.

    Args:
        decoder: Decodes the segment.
        data: The segment's bytes.
        segment: What decode recorded about the segment.
        rows: Rows in `segment.frames` of the frames to return; rows that do not exist are omitted.
        width: Maximum width of the pictures in pixels; the height follows from the shape of the picture.
        mask: Hidden areas (`lookout.rules.masks.Masks.shown`); None: no area is hidden.
        whole: Whether to return the whole filmed picture, even if the model's input is only part of it or has
            borders.

    Returns:
        The pictures by row, uint8 [height, width, 3], RGB.

    Raises:
        CodecError: The segment cannot be decoded.
    """
    indexes = {row: segment.frames[row].index for row in rows if 0 <= row < len(segment.frames)}
    if not indexes:
        return {}
    frames = tuple(sorted(set(indexes.values())))
    across, down = filmed_size(segment.picture, width, whole=whole)
    request = decode_request(
        across,
        down,
        fit=Fit.STRETCH if whole else Fit(segment.picture.fit or "stretch"),
        frames=frames,
        limits=Limits(bytes=MAX_MESSAGE_BYTES),
        mask=mask,
    )
    pixels = decoder.decode(data, request).pixels
    return {row: pixels[frames.index(index)] for row, index in indexes.items()}


def filmed_size(picture: Picture, width: int, *, whole: bool = False) -> tuple[int, int]:
    """Return the (width, height) of a picture for people that covers exactly the area of the model's input,
    so that the grid of groups can be drawn on it. It is no larger than what was filmed, unless the model's
    input is larger.

    Args:
        picture: How the segment's pictures became model input.
        width: Maximum width in pixels.
        whole: Whether to cover the whole filmed picture instead of the model's input.
    """
    across, down = picture.coded_width, picture.coded_height
    if picture.rotation in (90, 270):
        across, down = down, across
    if not whole and picture.fit not in ("", "stretch"):
        across, down = picture.width, picture.height
    scale = min(1.0, width / across) if across >= picture.width else width / across
    return max(2, round(across * scale) // 2 * 2), max(2, round(down * scale) // 2 * 2)
