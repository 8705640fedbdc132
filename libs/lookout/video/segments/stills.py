"""Still pictures as a video, for decoders that only open videos."""

from __future__ import annotations

import io
from collections.abc import Sequence

import av


def film(pictures: Sequence[bytes]) -> bytes:
    """Wrap JPEG pictures into a video with one picture a second, without decoding them.

    Args:
        pictures: Each must have at least one byte; the decoder rejects whatever else is wrong with them.
    """
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="avi") as out:
        stream = out.add_stream("mjpeg", rate=1)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "yuvj420p"  # each picture states its own size
        for number, picture in enumerate(pictures):
            packet = av.Packet(picture)
            packet.pts = packet.dts = number
            packet.stream, packet.is_keyframe = stream, True
            out.mux_one(packet)
    return buffer.getvalue()
