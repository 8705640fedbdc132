"""`python -m tests.bench.decode`: what decoding once, decoding less and decoding in parallel are worth.

For every clip, in one run: time of plain decoding (every frame decoded, sampled frames converted) against
single-pass decoding with block maps (in this process and in the sandbox) and keyframe-parallel decoding at
two sampling rates. Ratios are plain time over the other's, so above 1 is faster. The share of frames that
had to be decoded does not depend on the machine. Every parallel result is compared with plain decoding,
byte by byte. The last line is JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from lookout.codec import (
    BlockMap,
    CodecError,
    DecodeRequest,
    FileDecoder,
    Fit,
    FrameInfo,
    Geometry,
    Limits,
    Motion,
    SamplingGrid,
    SandboxPool,
)
from lookout.codec.container import Video
from lookout.codec.decoder import decode_segment
from lookout.codec.picture import Painter, frame_geometry
from lookout.codec.types import U8, Basis
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
LIMITS = Limits(bytes=1 << 30, seconds=1e5, frames=1 << 20)


@dataclass
class Count:
    """A gather that only counts blocks: the cost of having them."""

    needs_luma: bool = False
    blocks: int = 0

    def start(self, geometry: Geometry) -> None:
        """Nothing to prepare."""

    def push(self, frame: FrameInfo, blocks: BlockMap | None, luma: U8 | None) -> None:
        """Count."""
        self.blocks += len(blocks) if blocks is not None else 0

    def sample(self, frame: FrameInfo) -> Motion:
        """No motion is asked for here."""
        return Motion(Basis.NONE)


@dataclass(frozen=True)
class Row:
    """One clip. Ratios: plain time over this one's."""

    clip: str
    frames: int
    single_pass: float
    sandbox: float
    parallel: float
    decoded: float
    sparse: float
    sparse_decoded: float
    exact: bool


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
    times, shares, exact = {}, {}, True
    for name, grid in grids.items():
        begin = time.perf_counter()
        decoder = FileDecoder(path, *SIZE, grid=grid, threads=threads)
        got = {frame.position: frame.pixels for frame in decoder}
        times[name] = time.perf_counter() - begin
        begin = time.perf_counter()
        truth = plain(path, decoder)
        times[f"plain {name}"] = time.perf_counter() - begin
        shares[name] = decoder.work.frames / max(1, decoder.work.packets)
        exact = exact and got.keys() == truth.keys() and all((got[i] == truth[i]).all() for i in truth)
    request = DecodeRequest(*SIZE, gather=Count(), limits=LIMITS)
    begin = time.perf_counter()
    facts = decode_segment(data, request).facts
    times["single"] = time.perf_counter() - begin
    begin = time.perf_counter()
    pool.decode(data, request)
    times["sandbox"] = time.perf_counter() - begin
    return Row(
        clip=path.name,
        frames=facts.frames,
        single_pass=round(times["plain dense"] / times["single"], 2),
        sandbox=round(times["plain dense"] / times["sandbox"], 2),
        parallel=round(times["plain dense"] / times["dense"], 2),
        decoded=round(shares["dense"], 3),
        sparse=round(times["plain sparse"] / times["sparse"], 2),
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
    print(
        f"{'clip':44}{'frames':>7}{'single':>8}{'sandbox':>9}{'parallel':>10}{'decoded':>9}{'sparse':>8}{'decoded':>9}"
    )
    rows = []
    with SandboxPool(1) as pool:
        pool.decode(clips[0].read_bytes(), DecodeRequest(*SIZE, limits=LIMITS))
        for clip in clips:
            try:
                row = measure(clip, pool, options.threads)
            except CodecError as error:
                print(f"{clip.name:44}{error}")
                continue
            rows.append(row)
            print(
                f"{row.clip:44}{row.frames:7}{row.single_pass:8}{row.sandbox:9}{row.parallel:10}{row.decoded:9.0%}"
                f"{row.sparse:8}{row.sparse_decoded:9.0%}{'' if row.exact else '  DIFFERS'}"
            )
    summary = {
        "threads": options.threads,
        "exact": all(row.exact for row in rows),
        **{
            name: round(statistics.geometric_mean(max(1e-3, getattr(row, name)) for row in rows), 2)
            for name in ("single_pass", "sandbox", "parallel", "sparse")
        },
        **{
            name: round(statistics.mean(getattr(row, name) for row in rows), 3)
            for name in ("decoded", "sparse_decoded")
        },
        "clips": [asdict(row) for row in rows],
    }
    print(json.dumps(summary))
    return 0 if summary["exact"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
