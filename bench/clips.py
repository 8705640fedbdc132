"""Recordings for benches: real footage in one encoding, of any requested length."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import av

FPS = 30
SOURCE = "fixed/sam2_dog.mp4"  # 289 frames of a courtyard with fast local motion


def base_clip(source: Path, folder: Path, size: tuple[int, int] = (1920, 1080)) -> Path:
    """The source as H.264 at a size (width, height), a keyframe every 250 frames; encoded once."""
    path = folder / f"b250-{size[1]}p.mp4"
    if path.exists():
        return path
    with av.open(str(source)) as read, av.open(str(path) + ".part", "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=Fraction(FPS))
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.options = {"preset": "medium", "crf": "23", "g": "250", "bf": "3"}
        for number, frame in enumerate(read.decode(video=0)):
            if number == 250:
                break
            scaled = frame.reformat(*size, "yuv420p")
            scaled.pts, scaled.time_base = number, Fraction(1, FPS)
            for packet in stream.encode(scaled):
                out.mux(packet)
        for packet in stream.encode(None):
            out.mux(packet)
    os.replace(str(path) + ".part", path)
    return path


def repeated(base: Path, seconds: int) -> Path:
    """A recording of `seconds` whose packets are the base's, again and again."""
    path = base.with_name(f"{base.stem}-{seconds}s.mp4")
    if path.exists():
        return path
    with av.open(str(base)) as read, av.open(str(path) + ".part", "w", format="mp4") as out:
        video = read.streams.video[0]
        to = out.add_stream_from_template(video, opaque=True)
        packets = [packet for packet in read.demux(video) if packet.size]
        step = round(len(packets) / FPS / packets[0].time_base)
        least = min(packet.pts for packet in packets)
        for turn in range(-(-seconds * FPS // len(packets))):
            for packet in packets:
                copy = av.Packet(bytes(packet))
                copy.pts = packet.pts - least + turn * step
                copy.dts = packet.dts - least + turn * step
                copy.duration, copy.time_base = packet.duration, packet.time_base
                copy.is_keyframe, copy.stream = packet.is_keyframe, to
                out.mux(copy)
    os.replace(str(path) + ".part", path)
    return path


def ffmpeg_links(folder: Path) -> str:
    """A library path on which torchcodec finds the FFmpeg libraries that PyAV brings, and CUDA's runtime."""
    packages = Path(av.__file__).parents[1]
    links = folder / "ffmpeg"
    links.mkdir(exist_ok=True)
    for library in (packages / "av.libs").glob("lib*.so.*"):
        stem, _, version = library.name.partition(".so.")
        link = links / f"{stem.rpartition('-')[0]}.so.{version.partition('.')[0]}"
        link.unlink(missing_ok=True)
        link.symlink_to(library)
    cuda = [str(path) for path in packages.glob("nvidia/*/lib")]
    return ":".join([str(links), str(packages / "av.libs"), *cuda])
