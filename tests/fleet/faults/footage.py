"""Small deterministic cameras: boxes that move over a textured floor, encoded as cameras encode."""

from __future__ import annotations

import io
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np

from lookout.segments import cut

FPS = 10
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
