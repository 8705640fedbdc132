"""Clips whose pictures hold their numbers, and MPEG-TS whose time stamps say what a test wants."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
WIDTH, HEIGHT, BLOCK = 256, 64, 16
TICKS = 90_000
WRAP = 1 << 33


def picture(number: int) -> U8:
    """A picture with a number in blocks of its top row (light is 1, the lowest bit left)."""
    pixels = np.full((HEIGHT, WIDTH, 3), 110, np.uint8)
    for bit in range(WIDTH // BLOCK):
        pixels[:BLOCK, BLOCK * bit : BLOCK * (bit + 1)] = 230 if number >> bit & 1 else 25
    left = 4 * number % (WIDTH - 24)
    pixels[28:52, left : left + 24] = (200, 90, 60)
    return pixels


def number(pixels: U8) -> int:
    """The number of a decoded picture of any size."""
    height = len(pixels)
    row = pixels[: max(1, height * BLOCK // HEIGHT)].mean(axis=(0, 2))
    blocks = row.reshape(WIDTH // BLOCK, -1)
    edge = max(1, blocks.shape[1] // 4)
    return sum(int(block[edge:-edge].mean() > 127) << bit for bit, block in enumerate(blocks))


def packets(
    frames: int,
    *,
    fps: int = 25,
    gop: int = 25,
    bframes: int = 0,
    codec: str = "libx264",
    first: int = 0,
    extra: str = "",
) -> tuple[list[av.Packet], bytes]:
    """Encoded pictures in decoding order, stamped in frames from 0 on, and the encoder's configuration."""
    context = av.CodecContext.create(codec, "w")
    context.width, context.height, context.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    context.time_base, context.framerate = Fraction(1, fps), Fraction(fps)
    kind = "x265-params" if codec == "libx265" else "x264-params"
    quiet = ":log-level=error" if codec == "libx265" else ""
    context.options = {
        "preset": "ultrafast",
        "crf": "18",
        kind: f"keyint={gop}:min-keyint={gop}:scenecut=0:bframes={bframes}:b-adapt=0{quiet}{extra}",
    }
    out: list[av.Packet] = []
    for index in range(frames):
        frame = av.VideoFrame.from_ndarray(picture(first + index), format="rgb24").reformat(format="yuv420p")
        frame.pts, frame.time_base = index, context.time_base
        out += context.encode(frame)
    out += context.encode(None)
    return [packet for packet in out if packet.size], bytes(context.extradata or b"")


def clip(
    frames: int, *, container: str = "mpegts", start_s: float = 0.0, fps: int = 25, **how: object
) -> bytes:
    """A clip of numbered pictures.

    Args:
        frames: How many.
        container: FFmpeg's name.
        start_s: Time of the first.
        fps: Pictures a second.
        how: See `packets`.
    """
    buffer = io.BytesIO()
    encoded, _ = packets(frames, fps=fps, **how)  # type: ignore[arg-type]
    options = {"mpegts": {"mpegts_copyts": "1"}}.get(container, {})
    with av.open(buffer, "w", format=container, options=options) as out:
        stream = out.add_stream(str(how.get("codec", "libx264")), rate=fps)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.options = {}
        for packet in encoded:
            packet.time_base = Fraction(1, fps)
            shift = round(start_s * fps) + 2 * bool(how.get("bframes"))
            packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
            packet.stream = stream
            out.mux_one(packet)
    return buffer.getvalue()


def restamped(data: bytes, stamps: Mapping[int, int | None] | Sequence[int | None]) -> bytes:
    """MPEG-TS whose pictures, by their place in decoding order, have other presentation times.

    Args:
        data: Without B-frames, so that its pictures have no decoding times.
        stamps: Ticks of 90 kHz, taken modulo 2^33; None: none.
    """
    out = bytearray(data)
    wanted = dict(stamps) if isinstance(stamps, Mapping) else dict(enumerate(stamps))
    place = 0
    for at in range(0, len(out), 188):
        if (out[at + 1] & 0x1F, out[at + 2]) != (1, 0) or not out[at + 1] & 0x40:
            continue
        head = at + 4 + (1 + out[at + 4] if out[at + 3] & 0x20 else 0)
        assert out[head : head + 3] == b"\0\0\1", "a picture begins with its PES header"
        if place in wanted:
            assert out[head + 7] >> 6 == 2, "with a presentation time alone"
            stamp = wanted[place]
            if stamp is None:
                out[head + 7] &= 0x3F
                out[head + 9 : head + 14] = b"\xff" * 5
            else:
                out[head + 9 : head + 14] = _stamp(stamp % WRAP)
        place += 1
    return bytes(out)


def reordered(data: bytes, fps: int, shown: Sequence[int | None], decoded: Sequence[int | None]) -> bytes:
    """MPEG-TS with two B-frames in a row whose pictures have other time stamps.

    Args:
        data: From `clip`.
        fps: Pictures a second.
        shown: Presentation times by the number of a picture, in ticks of 90 kHz, taken modulo 2^33; None: the
            picture has no stamps.
        decoded: Of a recorder's clock by number: a picture has the decoding time of the one two places before
            it.
    """
    out = bytearray(data)
    heads = [
        at + 4 + (1 + out[at + 4] if out[at + 3] & 0x20 else 0)
        for at in range(0, len(out), 188)
        if (out[at + 1] & 0x1F, out[at + 2]) == (1, 0) and out[at + 1] & 0x40
    ]
    stamps = [_ticks(out[head + 9 : head + 14]) for head in heads]
    delay = 2 * 90_000 // fps
    for place, head in enumerate(heads):
        pts = shown[round((stamps[place] - min(stamps)) * fps / 90_000)]
        dts = decoded[max(0, place - 2)]
        if pts is None or dts is None:
            out[head + 7] &= 0x3F
            out[head + 9 : head + 9 + out[head + 8]] = b"\xff" * out[head + 8]
            continue
        both = out[head + 7] >> 6 == 3
        out[head + 9 : head + 14] = _stamp((pts + delay) % WRAP, 0x31 if both else 0x21)
        if both:
            out[head + 14 : head + 19] = _stamp((dts + delay - max(0, 2 - place) * delay // 2) % WRAP, 0x11)
    return bytes(out)


def _ticks(stamp: bytes | bytearray) -> int:
    low = (stamp[3] << 7) | (stamp[4] >> 1)
    return ((stamp[0] >> 1 & 7) << 30) | (stamp[1] << 22) | ((stamp[2] >> 1) << 15) | low


def _stamp(ticks: int, mark: int = 0x21) -> bytes:
    """A time stamp as MPEG writes it (ISO/IEC 13818-1, 2.4.3.6)."""
    return bytes(
        [
            mark | ticks >> 29 & 0x0E,
            ticks >> 22 & 0xFF,
            0x01 | ticks >> 14 & 0xFE,
            ticks >> 7 & 0xFF,
            0x01 | ticks << 1 & 0xFE,
        ]
    )
