"""Small deterministic cameras: boxes that move over a textured floor, encoded as cameras encode."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import av
import av.error
import numpy as np
from numpy.typing import NDArray

from lookout.video.segments import cut

FPS = 10
TS_PACKET = 188
WIDTH, HEIGHT = 160, 120


@dataclass(frozen=True, slots=True)
class Piece:
    """One segment to publish, and when its first frame was captured (seconds of the camera's life)."""

    camera: str
    data: bytes
    start_s: float


def pieces(camera: str, seed: int, seconds: int, stride_s: float) -> list[Piece]:
    """The segments of one camera; the same for the same seed."""
    return [
        Piece(camera, segment.data, segment.start_us / 1e6)
        for segment in cut(io.BytesIO(_film(seed, seconds)), target_s=stride_s)
    ]


def lossy(film: Sequence[Piece], share: float, seed: int) -> list[Piece]:
    """A camera's segments without a random share of their TS packets. The first and the last arrive whole, so
    that the stream's begin and end stay known."""
    draw = np.random.default_rng(seed)
    arrived = []
    for piece in film:
        packets = [piece.data[at : at + TS_PACKET] for at in range(0, len(piece.data), TS_PACKET)]
        rest = b"".join(packet for packet in packets if draw.random() >= share)
        arrived.append(piece if piece in (film[0], film[-1]) else replace(piece, data=rest))
    return arrived


def damaged_frames(sent: Sequence[Piece], arrived: Sequence[Piece]) -> set[int]:
    """Numbers of a camera's frames that are missing or show other pixels than those sent, found by decoding
    both with FFmpeg alone."""
    damaged: set[int] = set()
    for whole, rest in zip(sent, arrived, strict=True):
        pictures = _pictures(whole.data)
        shown = _pictures(rest.data) if rest != whole else pictures
        first = round(whole.start_s * FPS) - min(pictures)
        damaged |= {
            first + at
            for at, picture in pictures.items()
            if at not in shown or not np.array_equal(picture, shown[at])
        }
    return damaged


def _pictures(data: bytes) -> dict[int, NDArray[np.uint8]]:
    """Frames of a segment by their time stamp, in frames; none of what cannot be decoded."""
    pictures: dict[int, NDArray[np.uint8]] = {}
    with contextlib.suppress(av.error.FFmpegError, IndexError), av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        for packet in container.demux(stream):
            with contextlib.suppress(av.error.FFmpegError):
                for frame in packet.decode():
                    if frame.time is not None:
                        pictures[round(frame.time * FPS)] = frame.to_ndarray(format="rgb24")
    return pictures


def _film(seed: int, seconds: int) -> bytes:
    draw = np.random.default_rng(seed)
    floor = draw.integers(60, 180, (HEIGHT // 8, WIDTH // 8, 3)).repeat(8, 0).repeat(8, 1)
    boxes = [
        (draw.uniform(0, WIDTH), draw.uniform(0, HEIGHT), *draw.normal(0, 3, 2), draw.integers(0, 255, 3))
        for _ in range(3)
    ]
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mpegts") as container:
        options = {"g": str(FPS), "bf": "0", "preset": "ultrafast", "threads": "1", "sc_threshold": "0"}
        stream = container.add_stream("libx264", rate=FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.time_base = Fraction(1, FPS)
        for index in range(seconds * FPS):
            picture = floor + draw.normal(0, 2, floor.shape)
            for x, y, dx, dy, colour in boxes:
                left, top = int(x + dx * index) % (WIDTH - 24), int(y + dy * index) % (HEIGHT - 32)
                picture[top : top + 32, left : left + 24] = colour
            frame = av.VideoFrame.from_ndarray(picture.clip(0, 255).astype(np.uint8), "rgb24")
            frame.pts, frame.time_base = index, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()
