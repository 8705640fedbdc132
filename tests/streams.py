"""Small synthetic camera streams, encoded here: no footage needed."""

from __future__ import annotations

import io
from fractions import Fraction
from functools import cache

import av
import numpy as np

from lookout.video.segments import cut

SIDE = 224


def picture(time_s: float, noise: np.random.Generator) -> np.ndarray:
    """A grey room with texture; a bright square crosses it for three seconds of every six."""
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    room = 90 + 30 * np.sin(x / 9.0) * np.cos(y / 13.0) + noise.normal(0, 1.0, (SIDE, SIDE))
    phase = time_s % 6
    if phase < 3:
        left, top = int(20 + 45 * phase), 96
        room[top : top + 48, left : left + 40] = 220
    return np.repeat(np.clip(room, 0, 255).astype(np.uint8)[..., None], 3, axis=2)


@cache
def clip(
    seconds: float = 12.0,
    fps: int = 10,
    gop_s: float = 2.0,
    codec: str = "libx264",
    seed: int = 0,
    *,
    start_s: float = 0.0,
) -> bytes:
    """MPEG-TS bytes of a stream whose clock begins at `start_s`; P-frames only, as cameras send."""
    noise = np.random.default_rng(seed)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mpegts") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        stream.options = {"g": str(round(gop_s * fps)), "bf": "0", "preset": "veryfast", "sc_threshold": "0"}
        for n in range(round(start_s * fps), round((start_s + seconds) * fps)):
            frame = av.VideoFrame.from_ndarray(picture(n / fps, noise), format="rgb24")
            frame.pts, frame.time_base = n, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def segments(seconds: float = 12.0, **how: object) -> list[bytes]:
    """A stream cut at its keyframes."""
    return [piece.data for piece in cut(io.BytesIO(clip(seconds, **how)))]  # type: ignore[arg-type]
