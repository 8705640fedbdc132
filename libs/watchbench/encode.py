"""Encodes as cameras do: codec, group of pictures at a random phase, B-frames, rate control, intra refresh,
loss."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import av
import numpy as np
from av.video.frame import PictureType
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a camera encodes. Keyframes are ``gop_s`` seconds apart; the film starts after ``phase`` (0..1) of
    one group.

    ``bitrate`` in bit/s asks for constant rate with a one-second buffer; without it, quality is constant at
    ``crf``. ``intra_refresh`` sends one keyframe, then a moving column of intra blocks. ``loss`` is the share
    of packets dropped (never a keyframe's).
    """

    codec: Literal["h264", "hevc"] = "h264"
    gop_s: float = 2.0
    phase: float = 0.0
    bframes: int = 0
    crf: int = 24
    bitrate: int | None = None
    intra_refresh: bool = False
    loss: float = 0.0
    seed: int = 0


GOPS = (1.0, 2.0, 4.0, 10.0)


def varied(seed: int) -> Encoding:
    """Return one of the encodings that real cameras use, chosen by the seed."""
    r = random.Random(seed)
    refresh = r.random() < 0.1
    return Encoding(
        codec="hevc" if r.random() < 0.2 and not refresh else "h264",
        gop_s=r.choice(GOPS),
        phase=r.random(),
        bframes=0 if refresh else r.choice((0, 0, 2)),
        crf=r.choice((22, 25, 28)),
        bitrate=r.choice((None, None, 250_000)),
        intra_refresh=refresh,
        loss=r.choice((0.0, 0.0, 0.0, 0.01)),
        seed=seed,
    )


def write(
    frames: Iterable[NDArray[np.uint8]], path: Path, fps: Fraction, how: Encoding | None = None
) -> Path:
    """Encode RGB frames [H, W, 3] to ``path``; its suffix names the container (.mp4, .mkv, .ts, .h264).

    The file is written atomically.

    Raises:
        ValueError: There are no frames.
    """
    how = how or Encoding()
    fresh = path.with_name(f".part-{os.getpid()}-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    every = max(1, round(how.gop_s * fps))
    first = every - round(how.phase * every) if how.phase else 0
    lost = random.Random(how.seed)
    count = 0
    with av.open(str(fresh), "w") as out:
        stream = None
        for picture in frames:
            if stream is None:
                stream = _stream(out, how, fps, picture.shape[1], picture.shape[0], every)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = count, 1 / fps
            key = count == 0 or (not how.intra_refresh and (count - first) % every == 0)
            frame.pict_type = PictureType.I if key else PictureType.NONE
            for packet in stream.encode(frame):
                if packet.is_keyframe or lost.random() >= how.loss:
                    out.mux(packet)
            count += 1
        if stream is None:
            fresh.unlink(missing_ok=True)
            raise ValueError(f"cannot encode {path}: no frames were given")
        for packet in stream.encode(None):
            if packet.is_keyframe or lost.random() >= how.loss:
                out.mux(packet)
    fresh.replace(path)
    return path


def _stream(  # noqa: PLR0917
    out: av.container.OutputContainer, how: Encoding, fps: Fraction, width: int, height: int, every: int
) -> av.VideoStream:
    name = {"h264": "libx264", "hevc": "libx265"}[how.codec]
    stream = out.add_stream(name, rate=fps)
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    stream.codec_context.thread_count = 1
    rate = {"crf": str(how.crf)}
    if how.bitrate:
        stream.bit_rate = how.bitrate
        rate = {}
    if how.codec == "hevc":
        x265 = f"keyint=-1:scenecut=0:bframes={how.bframes}:log-level=none:pools=1:frame-threads=1"
        if how.bitrate:
            x265 += f":vbv-maxrate={how.bitrate // 1000}:vbv-bufsize={how.bitrate // 1000}"
        stream.options = {"preset": "superfast", "x265-params": x265, "forced-idr": "1", **rate}
        return stream
    options = {
        "preset": "veryfast",
        "g": "100000",
        "bf": str(how.bframes),
        "sc_threshold": "0",
        "forced-idr": "1",
        **rate,
    }
    if how.bitrate:
        options |= {"maxrate": str(how.bitrate), "bufsize": str(how.bitrate)}
    if how.intra_refresh:
        options |= {"intra-refresh": "1", "g": str(every)}
    stream.options = options
    return stream
