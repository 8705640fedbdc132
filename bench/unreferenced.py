"""`python -m bench.unreferenced`: what a camera agent would save by dropping pictures to which no other
picture refers.

Per clip and codec, as shares of the stream's bytes: `unreferenced` pictures, and `spare` ones, which are
unreferenced and not among two samples a second, so that an agent could drop them. The clips are real ones,
and the package's films encoded as cameras do: H.264 and HEVC, without B-frames and with two. Cameras that
send no B-frames refer to every picture. `cameras` is the median over real clips. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import numpy as np

import watchbench
from bench.motion import clips_of, footage
from bench.workplace import print_tables
from lookout.video.segments.av1 import (
    FRAME,
    FRAME_HEADER,
    SEQUENCE_HEADER,
    FrameHeader,
    SequenceHeader,
    units,
)
from watchbench import encode

SAMPLES: Final = 2  # a second
WORTH: Final = 0.15  # of a stream, from which dropping them would be worth its code
FILMS: Final = {
    f"{codec}, {count} B-frames": encode.Encoding(codec=codec, bframes=count)  # type: ignore[arg-type]
    for codec in ("h264", "hevc")
    for count in (0, 2)
}


@dataclass(frozen=True, slots=True)
class Sent:
    """A coded picture: its bytes, its time stamp, and whether another picture may refer to it."""

    size: int
    time: float
    referred: bool


def nals(data: bytes, length: int) -> Iterator[bytes]:
    """Yield the first two bytes of each NAL unit of an H.264 or HEVC packet.

    Args:
        data: The packet.
        length: Bytes of the size before each unit; 0: units follow start codes.
    """
    at = 0
    while length and at + length < len(data):
        size = int.from_bytes(data[at : at + length], "big")
        yield data[at + length : at + length + 2]
        at += length + size
    at = data.find(b"\0\0\1") if not length else -1
    while at >= 0:
        yield data[at + 3 : at + 5]
        at = data.find(b"\0\0\1", at + 3)


def h264_refers(data: bytes, length: int) -> bool:
    """Whether `nal_ref_idc` of a slice is above 0."""
    return any(nal[0] >> 5 & 3 for nal in nals(data, length) if nal and 1 <= nal[0] & 31 <= 5)


def hevc_layer(data: bytes, length: int) -> tuple[int, bool]:
    """The temporal layer of a picture, and whether pictures of that layer may refer to it."""
    slices = [nal for nal in nals(data, length) if len(nal) == 2 and nal[0] >> 1 & 63 < 32]
    kind, layer = (slices[0][0] >> 1 & 63, slices[0][1] & 7) if slices else (1, 1)
    return layer, kind >= 16 or kind % 2 == 1


def av1_refers(data: bytes, sequence: SequenceHeader | None) -> bool:
    """Whether a frame of the packet is stored in a slot."""
    headers = [body for kind, body in units(data) if kind in (FRAME_HEADER, FRAME)]
    return sequence is None or any(FrameHeader.parse(body, sequence).writes for body in headers)


def sent(path: Path) -> tuple[str, list[Sent]]:
    """The codec of a clip, and its pictures in the order they are sent; none if it has no stream to read."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        codec, extra = stream.codec_context.name, stream.codec_context.extradata or b""
        packets = [packet for packet in container.demux(stream) if packet.size]
    boxed = extra[:1] == b"\x01"
    length = (extra[{"h264": 4, "hevc": 21}.get(codec, 0)] & 3) + 1 if boxed else 0
    stamps = [packet.pts if packet.pts is not None else number for number, packet in enumerate(packets)]
    times = [float(stamp * packet.time_base) for stamp, packet in zip(stamps, packets, strict=True)]
    data = [bytes(packet) for packet in packets]
    if codec == "h264":
        referred = [h264_refers(each, length) for each in data]
    elif codec == "hevc":
        layers = [hevc_layer(each, length) for each in data]
        top = max(layer for layer, _ in layers)
        referred = [refers or layer < top for layer, refers in layers]
    elif codec in ("av1", "libdav1d"):
        heads = [body for each in (extra[4:], *data) for kind, body in units(each) if kind == SEQUENCE_HEADER]
        sequence = SequenceHeader.parse(heads[0]) if heads else None
        referred = [av1_refers(each, sequence) for each in data]
    else:
        return codec, []
    return codec, [Sent(*one) for one in zip(map(len, data), times, referred, strict=True)]


def shares(pictures: Sequence[Sent]) -> dict[str, float]:
    """Of the bytes: those of unreferenced pictures, and of those that are no samples either."""
    total = sum(one.size for one in pictures)
    slots: dict[int, float] = {}
    for one in sorted(pictures, key=lambda one: one.time):
        slots.setdefault(int(one.time * SAMPLES), one.time)
    sampled = set(slots.values())
    free = [one for one in pictures if not one.referred]
    spare = sum(one.size for one in free if one.time not in sampled)
    return {
        "unreferenced": round(sum(one.size for one in free) / total, 4),
        "spare": round(spare / total, 4),
        "pictures": round(len(free) / len(pictures), 4),
    }


def films(folder: Path) -> Iterator[tuple[str, Path]]:
    """The films of the package, as cameras encode."""
    for film in sorted((Path(next(iter(watchbench.__path__))) / "films").glob("*.mp4")):
        with av.open(str(film)) as container:
            pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        for name, how in FILMS.items():
            path = folder / f"{film.stem}-{name}.mp4"
            yield f"{film.stem.partition('-')[0]}, {name}", encode.write(pictures, path, Fraction(25, 2), how)


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    root = footage()
    rows: dict[str, dict[str, Any]] = {}
    real: dict[str, list[float]] = {}
    for path in [] if root is None else clips_of(root):
        if path.parent.name == "derived":
            continue
        codec, pictures = sent(path)
        if pictures:
            rows[path.stem] = {"codec": codec, **shares(pictures)}
            real.setdefault(codec, []).append(rows[path.stem]["spare"])
    with tempfile.TemporaryDirectory() as folder:
        for name, path in films(Path(folder)):
            codec, pictures = sent(path)
            rows[name] = {"codec": codec, **shares(pictures)}
    cameras = {
        codec: {
            "clips": len(found),
            "clips with any": sum(share > 0 for share in found),
            f"clips from {WORTH}": sum(share >= WORTH for share in found),
            "median": round(float(np.median(found)), 4),
            "largest": max(found),
        }
        for codec, found in real.items()
    }
    tables = {"cameras": cameras, "clips": rows}
    print_tables(tables)
    print(json.dumps({"tables": tables}))


if __name__ == "__main__":
    main()
