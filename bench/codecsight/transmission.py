"""Figure 11, its first stage: what a camera sends. Sampled frames as JPEGs, as a server of images takes them,
or the encoded stream; counted on real clips, in seconds over a modelled link."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any, Final

import av
import numpy as np

from bench.motion import MOVING, clips_of

FPS: Final = 2.0  # samples a second
STRIDE_S: Final = 8.0
QUALITY: Final = 85  # of a JPEG
LINKS: Final = {"2 Mbit/s": 2e6, "10 Mbit/s": 10e6, "50 Mbit/s": 50e6}


def sent(path: Path, limit_s: float = 20.0) -> tuple[int, int, float]:
    """Bytes of the stream, bytes of its samples as JPEGs, and seconds, of the first seconds of a clip."""
    stream = jpegs = 0
    seconds, following = 0.0, 0.0
    with av.open(str(path)) as container:
        video = container.streams.video[0]
        begin: float | None = None
        for packet in container.demux(video):
            stream += packet.size
            for frame in packet.decode():
                if frame.time is None:
                    continue
                begin = frame.time if begin is None else begin
                seconds = frame.time - begin
                if seconds >= following:
                    image = io.BytesIO()
                    frame.to_image().save(image, "JPEG", quality=QUALITY)
                    jpegs, following = jpegs + image.tell(), following + 1 / FPS
            if seconds >= limit_s:
                break
    return stream, jpegs, seconds


def transmission(where: Path, limit: int, until: float) -> dict[str, dict[str, Any]]:
    """Bytes of a stride of 8 s by the clips' median, and its seconds over links."""
    told = []
    for path in clips_of(where):
        if len(told) == limit or time.monotonic() > until:
            break
        if path.stem in MOVING:
            continue
        try:
            stream, jpegs, seconds = sent(path)
        except (av.error.FFmpegError, ValueError):
            continue
        if seconds >= STRIDE_S / 2 and stream and jpegs:
            told.append((stream / seconds * STRIDE_S, jpegs / seconds * STRIDE_S))
    if not told:
        return {}
    table = np.array(told)
    ratio = table[:, 1] / table[:, 0]
    out = {}
    for name, column in (("stream", 0), ("JPEGs", 1)):
        size = float(np.median(table[:, column]))
        out[name] = {"kB a stride": round(size / 1e3, 1)}
        out[name] |= {f"s over {link}": round(8 * size / rate, 3) for link, rate in LINKS.items()}
        out[name] |= {"clips": len(told)}
    quartiles = [round(float(np.quantile(ratio, q)), 2) for q in (0.25, 0.5, 0.75)]
    out["JPEGs"]["over the stream, quartiles"] = quartiles
    out["stream"]["over the stream, quartiles"] = [1.0, 1.0, 1.0]
    return out
