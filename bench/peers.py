"""`make bench-peers`: samples of recordings read by Lookout, by torchcodec's VideoDecoder and by torchcodec's
stages.

All three read the pictures shown at the same times, scaled to 448x448, with two threads. The stages are those
that torchcodec 0.17 offers one by one: the container is scanned and read from the preceding keyframe up to
each time (demux), the packets are decoded (decode), the picture at that time is converted to RGB at its own
size (convert) and scaled by torchvision (resize). VideoDecoder does the same in one call, with its faster
seek (approximate) and its own scaling.

A real clip is encoded at --height lines; long recordings repeat its packets without encoding again. Every
measurement is a separate process, in random order within a case; torchcodec uses the FFmpeg libraries that
PyAV brings. Finished measurements stay in --keep, so an interrupted run continues. Ratios are the peer's
elapsed or CPU seconds over ours: above 1, Lookout is faster. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
from tqdm import tqdm

from bench.results import Results
from tests.conftest import find_footage

SIZE: Final = (448, 448)
FPS: Final = 30
THREADS: Final = 2
SOURCE: Final = "fixed/sam2_dog.mp4"  # 250 pictures of a courtyard with fast local motion
X264: Final = {"preset": "medium", "crf": "23"}
ENCODINGS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "b250": ("libx264", {**X264, "g": "250", "bf": "3"}),
    "p250": ("libx264", {**X264, "g": "250", "bf": "0"}),
    "b30": ("libx264", {**X264, "g": "30", "bf": "3"}),
    "p30": ("libx264", {**X264, "g": "30", "bf": "0"}),
    "hevc250": ("libx265", {"preset": "fast", "crf": "26", "x265-params": "keyint=250:log-level=none"}),
    "av1": ("libsvtav1", {"preset": "9", "crf": "35", "g": "250"}),
}
READERS: Final = ("lookout", "decoder", "stages")


@dataclass(frozen=True, slots=True)
class Case:
    """A recording of `seconds`, and the times to read: every `gap` seconds from `offset`."""

    name: str
    clip: str
    seconds: int
    gap: float
    offset: float = 0.0

    @property
    def times_us(self) -> list[int]:
        """Times to read, in microseconds."""
        count = int((self.seconds - 0.1 - self.offset) / self.gap) + 1
        return [round((self.offset + i * self.gap) * 1e6) for i in range(count)]


CASES: Final = (
    Case("B-frames, GOP 250, 1 min, 1 FPS", "b250", 60, 1),
    Case("B-frames, GOP 250, 5 min, one in 5 s", "b250", 300, 5, 2.0),
    Case("no B-frames, GOP 250, 1 min, 1 FPS", "p250", 60, 1),
    Case("no B-frames, GOP 30, 5 min, one in 5 s", "p30", 300, 5, 0.4),
    Case("B-frames, GOP 30, 1 min, 1 FPS", "b30", 60, 1, 0.4),
    Case("no B-frames, GOP 30, 1 min, 1 FPS", "p30", 60, 1, 0.4),
    Case("HEVC, GOP 250, 1 min, 1 FPS", "hevc250", 60, 1),
    Case("AV1, GOP 250, 1 min, 1 FPS", "av1", 60, 1),
    Case("B-frames, GOP 250, 1 min, 2 FPS", "b250", 60, 0.5),
    Case("B-frames, GOP 250, 10 s, 1 FPS", "b250", 10, 1),
    Case("no B-frames, GOP 250, 5 min, one in 5 s", "p250", 300, 5, 2.0),
    Case("B-frames, GOP 250, 5 min, 1 FPS", "b250", 300, 1),
    Case("B-frames, GOP 250, 1 hour, one in 2 min", "b250", 3600, 120, 3.0),
    Case("no B-frames, GOP 30, 1 hour, one in 30 s", "p30", 3600, 30, 0.4),
    Case("B-frames, GOP 250, 30 s, 1 FPS", "b250", 30, 1),
)


def base_clip(source: Path, folder: Path, name: str, height: int) -> Path:
    """Return the source in one of the encodings; made once."""
    path, width = folder / f"{name}-{height}.mp4", height * 16 // 9
    if path.exists():
        return path
    codec, options = ENCODINGS[name]
    with av.open(str(source)) as read, av.open(f"{path}.part", "w", format="mp4") as out:
        stream = out.add_stream(codec, rate=Fraction(FPS), options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number, frame in enumerate(read.decode(video=0)):
            if number == 250:
                break
            scaled = frame.reformat(width, height, "yuv420p")
            scaled.pts, scaled.time_base = number, Fraction(1, FPS)
            out.mux(stream.encode(scaled))
        out.mux(stream.encode(None))
    Path(f"{path}.part").rename(path)
    return path


def repeated(base: Path, seconds: int) -> Path:
    """Return a recording whose packets are the base's, again and again."""
    path = base.with_name(f"{base.stem}-{seconds}s.mp4")
    if path.exists():
        return path
    with av.open(str(base)) as read, av.open(f"{path}.part", "w", format="mp4") as out:
        video = read.streams.video[0]
        target = out.add_stream_from_template(video, opaque=True)
        packets = [packet for packet in read.demux(video) if packet.size]
        step = round(len(packets) / FPS / packets[0].time_base)
        first = min(packet.pts or 0 for packet in packets)
        for turn in range(-(-seconds * FPS // len(packets))):
            for packet in packets:
                copy = av.Packet(bytes(packet))
                copy.pts = (packet.pts or 0) - first + turn * step
                copy.dts = (packet.dts or 0) - first + turn * step
                copy.duration, copy.time_base = packet.duration, packet.time_base
                copy.is_keyframe, copy.stream = packet.is_keyframe, target
                out.mux(copy)
    Path(f"{path}.part").rename(path)
    return path


def ffmpeg_links(folder: Path) -> str:
    """Return a library path on which torchcodec finds the FFmpeg libraries that PyAV brings, and CUDA's."""
    packages, links = Path(av.__file__).parents[1], folder / "ffmpeg"
    links.mkdir(parents=True, exist_ok=True)
    for library in (packages / "av.libs").glob("lib*.so.*"):
        stem, _, version = library.name.partition(".so.")
        link = links / f"{stem.rpartition('-')[0]}.so.{version.partition('.')[0]}"
        link.unlink(missing_ok=True)
        link.symlink_to(library)
    return ":".join([str(links), str(packages / "av.libs"), *map(str, packages.glob("nvidia/*/lib"))])


class Stages:
    """Seconds spent in each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(("demux", "decode", "convert", "resize"), 0.0)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        begin = time.perf_counter()
        yield
        self.seconds[stage] += time.perf_counter() - begin


def by_lookout(path: str, times_us: list[int]) -> tuple[int, dict[str, float]]:
    """Read with Lookout."""
    from lookout.video.files import VideoReader

    with VideoReader(path) as reader:
        return len(reader.read(times_us=times_us, size=SIZE, threads=THREADS)), {}


def by_decoder(path: str, times_us: list[int]) -> tuple[int, dict[str, float]]:
    """Read with VideoDecoder."""
    from torchcodec.decoders import VideoDecoder
    from torchcodec.transforms import Resize

    decoder = VideoDecoder(
        path, num_ffmpeg_threads=THREADS, seek_mode="approximate", transforms=[Resize(SIZE)]
    )
    return len(decoder.get_frames_played_at([t / 1e6 for t in times_us]).data), {}


def by_stages(path: str, times_us: list[int]) -> tuple[int, dict[str, float]]:
    """Read with Demuxer, VideoPacketDecoder and ColorConverter, and scale what they give."""
    from torchcodec import decoders
    from torchvision.transforms.v2.functional import resize

    blocks: Any = decoders  # does not say which names it exports
    stages, converter, pictures = Stages(), blocks.ColorConverter(), []
    with stages.timed("demux"):
        demuxer = blocks.Demuxer(path)
        index = demuxer.streams[0].scan()
        targets = [float(index.pts_seconds[index.index_at(t / 1e6)]) for t in times_us]
    with stages.timed("decode"):
        decoder = demuxer.streams[0].make_decoder(num_ffmpeg_threads=THREADS)
    wanted, key, last = iter(targets), -1.0, False
    target = next(wanted, None)
    while target is not None:
        begin = index.key_frame_seconds_for(target)
        if begin != key:  # the next group of pictures that has a time
            with stages.timed("demux"):
                demuxer.seek(begin)
            with stages.timed("decode"):
                decoder.reset()
            key, last = begin, False
        frames: list[Any] = []
        while target is not None and index.key_frame_seconds_for(target) == key and not (last and not frames):
            with stages.timed("demux"):
                packet = None if last else next(demuxer, None)
            with stages.timed("decode"):
                last = packet is None
                frames = decoder.drain() if packet is None else decoder.decode(packet)
            for frame in frames:
                while target is not None and abs(frame.pts_seconds - target) < 1e-6:
                    with stages.timed("convert"):
                        picture = converter.convert(frame).data
                    with stages.timed("resize"):
                        pictures.append(resize(picture, list(SIZE), antialias=True))
                    target = next(wanted, None)
        if last and not frames and target is not None and index.key_frame_seconds_for(target) == key:
            raise RuntimeError(f"no picture at {target} s")
    return len(pictures), stages.seconds


def job(reader: str, path: str, times_us: list[int]) -> dict[str, Any]:
    """Read once: seconds elapsed and of CPU, samples, seconds by stage. Imports are not timed."""
    import lookout.video.files.reader  # noqa: F401

    if reader != "lookout":
        import torch
        import torchcodec.decoders
        import torchcodec.transforms  # noqa: F401
        import torchvision.transforms.v2.functional  # noqa: F401

        torch.set_num_threads(1)
    begin, cpu = time.perf_counter(), time.process_time()
    read = {"lookout": by_lookout, "decoder": by_decoder, "stages": by_stages}[reader]
    samples, stages = read(path, times_us)
    assert samples == len(times_us), f"{samples} of {len(times_us)} samples"
    elapsed = time.perf_counter() - begin
    return {"elapsed": elapsed, "cpu": time.process_time() - cpu, "samples": samples, "stages": stages}


def measured(reader: str, path: Path, times_us: list[int], libraries: str) -> dict[str, Any]:
    """Run a job in a process of its own.

    Raises:
        RuntimeError: It fails; the message is its last line.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if reader != "lookout":
        environment["LD_LIBRARY_PATH"] = libraries
    command = [sys.executable, "-m", "bench.peers", "--job", json.dumps([reader, str(path), times_us])]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{reader}: {run.stderr.strip().splitlines()[-1:]}")
    value: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return value


def row_of(runs: dict[str, dict[str, Any]]) -> dict[str, float | int]:
    """Return the ratios of a case."""
    ours, decoder, stages = (runs[reader] for reader in READERS)
    return {
        "samples": ours["samples"],
        "ours_s": round(ours["elapsed"], 2),
        "decoder": round(decoder["elapsed"] / ours["elapsed"], 2),
        "decoder_cpu": round(decoder["cpu"] / ours["cpu"], 2),
        "stages": round(stages["elapsed"] / ours["elapsed"], 2),
        "stages_cpu": round(stages["cpu"] / ours["cpu"], 2),
        **{name: round(seconds / ours["elapsed"], 2) for name, seconds in stages["stages"].items()},
    }


def main() -> int:
    """Measure; the last line is JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--height", type=int, default=1080, help="lines of the recordings [default: 1080]")
    parser.add_argument("--keep", type=Path, default=Path("out/peers"), help="recordings and measurements")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(job(*json.loads(options.job))))
        return 0
    footage = find_footage()
    if footage is None:
        parser.error("no footage found: set LOOKOUT_FOOTAGE to a folder of clips")
    libraries = ffmpeg_links(options.keep)
    results, order = Results(options.keep / f"runs-{options.height}.jsonl"), random.Random(46)
    rows: dict[str, dict[str, float | int]] = {}
    for case in tqdm(CASES, disable=None):
        path = repeated(base_clip(footage / SOURCE, options.keep, case.clip, options.height), case.seconds)
        for reader in order.sample(READERS, len(READERS)):
            name = f"{case.name} {reader}"
            if name not in results:
                results.add(name, measured(reader, path, case.times_us, libraries))
        rows[case.name] = row_of({reader: results.found[f"{case.name} {reader}"] for reader in READERS})
        tqdm.write(f"{case.name:42} {rows[case.name]}")
    ratios = ("decoder", "decoder_cpu", "stages", "stages_cpu")
    least = {ratio: min(row[ratio] for row in rows.values()) for ratio in ratios}
    print(json.dumps({"height": options.height, "least": least, "cases": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
