"""`python -m tests.bench.decode`: what decoding once, decoding less and decoding in parallel are worth.

For every clip, in one run and in CPU time: plain decoding (every frame decoded in order, sampled frames
converted) against single-pass decoding with motion gathered from block maps, in this process and in the
sandbox, and keyframe-parallel decoding at two sampling rates; for the latter also in elapsed time. Ratios are
plain time over the other's, so above 1 is less. The share of frames that had to be decoded does not depend on
the machine. Every parallel result is compared with plain decoding, byte by byte. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from lookout.codec import CodecError, DecodeRequest, FileDecoder, Fit, Limits, SamplingGrid, SandboxPool
from lookout.codec.container import Video
from lookout.codec.decoder import decode_segment
from lookout.codec.picture import Painter, frame_geometry
from lookout.codec.types import U8
from lookout.pruning import GatherSettings, MotionGather
from tests.conftest import find_footage

CLIPS = (
    "fixed/intel_one_by_one_person.mp4",
    "fixed/intel_bottle_shelf.mp4",
    "fixed/intel_car_topdown.mp4",
    "fixed/sam2_dog.mp4",
    "fixed/gmdcsa_s1_adl10.mp4",
    "fixed/gmdcsa_s3_fall16_night.mp4",
    "fixed/axis_cable_hevc.mp4",
    "moving/carnd_dashcam_highway.mp4",
    "moving/androidx_rooftop_320x240_60fps.mp4",
    "derived/ipcam_like_baseline_gop600_60s.mp4",
    "derived/open_gop_bframes_h264.mp4",
    "derived/fall_av1.mp4",
)
SIZE = (112, 112)
GATHER = GatherSettings(rows=8, cols=8, patch=14)
LIMITS = Limits(bytes=1 << 30, seconds=1e5, frames=1 << 20)


@dataclass(frozen=True)
class Row:
    """One clip. Ratios: plain time over this one's; CPU time but for `parallel_elapsed`."""

    clip: str
    frames: int
    single_pass: float
    sandbox: float
    parallel: float
    parallel_elapsed: float
    decoded: float
    sparse: float
    sparse_decoded: float
    exact: bool


RATIOS = ("single_pass", "sandbox", "parallel", "parallel_elapsed", "sparse")
SHARES = ("decoded", "sparse_decoded")


@dataclass
class Clock:
    """CPU and elapsed seconds of a piece of work, in this process and, if given, in another."""

    other: psutil.Process | None = None
    cpu: float = 0.0
    elapsed: float = 0.0

    def _now(self) -> float:
        child = sum(self.other.cpu_times()[:2]) if self.other is not None else 0.0
        return time.process_time() + child

    def __enter__(self) -> Clock:
        self._cpu, self._elapsed = self._now(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu, self.elapsed = self._now() - self._cpu, time.perf_counter() - self._elapsed


def plain(path: Path, decoder: FileDecoder) -> dict[int, U8]:
    """Position -> pixels, decoding everything in order on one thread."""
    ordered = decoder.table.ordered
    wanted = {(pick.pts if ordered else pick.index): i for i, pick in enumerate(decoder.picks)}
    painter, out = Painter(), {}
    with path.open("rb") as file, Video(file, vectors=False) as video:
        for index, frame in enumerate(video.frames()):
            position = wanted.get(frame.pts if ordered else index)
            if position is not None:
                out[position] = painter.paint(frame, frame_geometry(frame, *SIZE, Fit.STRETCH))
    return out


def measure(path: Path, pool: SandboxPool, threads: int) -> Row:
    """All ways of decoding one clip."""
    data = path.read_bytes()
    grids = {"dense": SamplingGrid(500_000), "sparse": SamplingGrid(5_000_000)}
    clocks: dict[str, Clock] = {}
    shares, exact = {}, True
    for name, grid in grids.items():
        with Clock() as clocks[name]:
            decoder = FileDecoder(path, *SIZE, grid=grid, threads=threads)
            got = {frame.position: frame.pixels for frame in decoder}
        with Clock() as clocks[f"plain {name}"]:
            truth = plain(path, decoder)
        shares[name] = decoder.work.frames / max(1, decoder.work.packets)
        exact = exact and got.keys() == truth.keys() and all((got[i] == truth[i]).all() for i in truth)
    request = DecodeRequest(*SIZE, gather=MotionGather(GATHER), limits=LIMITS)
    with Clock() as single:
        facts = decode_segment(data, request).facts
    with Clock(psutil.Process(pool.pids()[0])) as sandbox:
        pool.decode(data, request)
    base = clocks["plain dense"]
    return Row(
        clip=path.name,
        frames=facts.frames,
        single_pass=round(base.cpu / single.cpu, 2),
        sandbox=round(base.cpu / sandbox.cpu, 2),
        parallel=round(base.cpu / clocks["dense"].cpu, 2),
        parallel_elapsed=round(base.elapsed / clocks["dense"].elapsed, 2),
        decoded=round(shares["dense"], 3),
        sparse=round(clocks["plain sparse"].cpu / clocks["sparse"].cpu, 2),
        sparse_decoded=round(shares["sparse"], 3),
        exact=exact,
    )


def main(arguments: list[str] | None = None) -> int:
    """Print a table and one line of JSON; 1 if a parallel result differed, 2 without footage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clips", nargs="*", type=Path, help="files (default: a selection of the footage)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 2, help="decoding threads")
    options = parser.parse_args(arguments)
    footage = find_footage()
    clips = options.clips or ([footage / name for name in CLIPS] if footage is not None else [])
    if not clips:
        print("no footage: set LOOKOUT_FOOTAGE, or name files", file=sys.stderr)
        return 2
    head = ("frames", "single", "sandbox", "parallel", "elapsed", "decoded", "sparse", "decoded")
    print(f"{'clip':40}" + "".join(f"{name:>9}" for name in head))
    rows = []
    with SandboxPool(1) as pool:
        pool.decode(clips[0].read_bytes(), DecodeRequest(*SIZE, gather=MotionGather(GATHER), limits=LIMITS))
        for clip in clips:
            try:
                row = measure(clip, pool, options.threads)
            except CodecError as error:
                print(f"{clip.name:40}{error}")
                continue
            rows.append(row)
            dense = f"{row.single_pass:9}{row.sandbox:9}{row.parallel:9}{row.parallel_elapsed:9}"
            sparse = f"{row.decoded:9.0%}{row.sparse:9}{row.sparse_decoded:9.0%}"
            print(
                f"{row.clip[:39]:40}{row.frames:9}{dense}{sparse}{'' if row.exact else '  DIFFERS'}",
                flush=True,
            )
    means = {
        name: statistics.geometric_mean(max(1e-3, getattr(row, name)) for row in rows) for name in RATIOS
    }
    means |= {name: statistics.mean(getattr(row, name) for row in rows) for name in SHARES}
    summary = {
        "threads": options.threads,
        "exact": all(row.exact for row in rows),
        **{name: round(value, 3) for name, value in means.items()},
        "clips": [asdict(row) for row in rows],
    }
    print(json.dumps(summary))
    return 0 if summary["exact"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
