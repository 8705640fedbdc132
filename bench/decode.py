"""`python -m bench.decode`: what decoding once, decoding less and decoding in parallel are worth.

Live decoding: every clip is cut at keyframes into segments of about 2 s, as cameras send them. Each segment
is decoded plainly (every frame in order, the samples converted) and in a single pass, without and with motion
vectors. Recordings: the whole file plainly, and keyframe-parallel at two sampling rates. CPU time in one run;
for parallel decoding also elapsed time. Ratios are plain time over the other's, so above 1 is less. The share
of frames that had to be decoded does not depend on the machine. Results are compared with plain decoding,
byte by byte. The last line is JSON; its `single_pass` sums CPU time over clips with B-frames (b), without
(p), and without but with vectors (vectors_p), and names the worst clip of each.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from lookout.cores import usable_cores
from lookout.pruning import GatherSettings, MotionGather
from lookout.video.files import FileDecoder
from lookout.video.motion import Fit, Picture
from lookout.video.motion.types import U8
from lookout.video.sandbox import SandboxPool, SandboxSettings
from lookout.video.segments import CodecError, DecodeRequest, Limits, SamplingGrid, Tail, cut
from lookout.video.segments.container import Video
from lookout.video.segments.decoder import decode_segment
from lookout.video.segments.picture import Painter, frame_geometry
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
ROUNDS = 5
LIMITS = Limits(bytes=1 << 30, seconds=1e5, frames=1 << 20)


@dataclass(frozen=True)
class Row:
    """One clip. Ratios: plain time over this one's; CPU time but for `parallel_elapsed`."""

    clip: str
    frames: int
    kind: str  # b or p
    plain_s: float
    single_s: float
    vectors_s: float
    single_pass: float
    with_vectors: float
    live_decoded: float
    sandbox: float
    parallel: float
    parallel_elapsed: float
    decoded: float
    sparse: float
    sparse_decoded: float
    exact: bool


RATIOS = ("sandbox", "parallel", "parallel_elapsed", "sparse")
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


@dataclass
class Live:
    """One clip as a camera sends it: CPU seconds of each way to decode its segments."""

    b_frames: bool = False
    plain_s: float = 0.0
    single_s: float = 0.0
    vectors_s: float = 0.0
    sandbox_s: float = 0.0
    frames: int = 0
    decoded: int = 0
    exact: bool = True


def live(path: Path, pool: SandboxPool) -> Live:
    """Decode a clip segment by segment in every way; the ways take turns, the fastest run of each counts."""
    out = Live()
    child = psutil.Process(pool.pids()[0])
    request = DecodeRequest(*SIZE, tail=Tail.LEAVE, limits=LIMITS)
    for piece in cut(path, target_s=2.0, max_bytes=1 << 30):
        bare = replace(request, vectors=False)
        decoded = decode_segment(piece.data, bare)
        wanted = {frame.info.index for frame in decoded.frames}
        single, vectors, plain = least_cpu(
            lambda: decode_segment(piece.data, bare),  # noqa: B023
            lambda: decode_segment(piece.data, replace(request, gather=MotionGather(GATHER))),  # noqa: B023
            lambda: plain_segment(piece.data, wanted),  # noqa: B023
        )
        with Clock(child) as sandboxed:
            pool.decode(piece.data, bare)
        pixels, b_frames = plain_segment(piece.data, wanted)
        out.exact = out.exact and len(pixels) == len(decoded.pixels)
        out.exact = out.exact and all((a == b).all() for a, b in zip(pixels, decoded.pixels, strict=False))
        out.b_frames |= b_frames
        out.plain_s, out.single_s = out.plain_s + plain, out.single_s + single
        out.vectors_s, out.sandbox_s = out.vectors_s + vectors, out.sandbox_s + sandboxed.cpu
        out.frames, out.decoded = out.frames + decoded.facts.frames, out.decoded + decoded.facts.decoded
        request = replace(request, expected=decoded.following(), first_slot=decoded.next_slot)
    return out


def plain_segment(data: bytes, wanted: set[int]) -> tuple[list[U8], bool]:
    """The samples of a segment (presentation indexes) by decoding all of it, and whether it has B-frames."""
    painter, out, b_frames = Painter(), [], False
    with Video(io.BytesIO(data), vectors=False, limits=LIMITS) as video:
        for index, frame in enumerate(video.frames()):
            b_frames |= frame.pict_type == Picture.B
            if index in wanted:
                out.append(painter.paint(frame, frame_geometry(frame, *SIZE, Fit.STRETCH)))
    return out, b_frames


def least_cpu(*ways: Callable[[], object]) -> list[float]:
    """CPU seconds of each way: the least of ROUNDS runs. They take turns, so that what else runs on the
    machine affects all.
    """
    runs: list[list[float]] = [[] for _ in ways]
    for _ in range(ROUNDS):
        for way, seconds in zip(ways, runs, strict=True):
            with Clock() as clock:
                way()
            seconds.append(clock.cpu)
    return [min(seconds) for seconds in runs]


def single_pass(rows: Sequence[Row]) -> dict[str, object]:
    """Sums per kind, and the worst clip of each."""
    out: dict[str, object] = {}
    for name, kind, column in (
        ("b", "b", "single_s"),
        ("p", "p", "single_s"),
        ("vectors_p", "p", "vectors_s"),
    ):
        mine = [row for row in rows if row.kind == kind]
        if not mine:
            continue
        out[name] = round(sum(row.plain_s for row in mine) / sum(getattr(row, column) for row in mine), 3)
        ratios = {row.clip: row.plain_s / getattr(row, column) for row in mine}
        worst = min(ratios, key=ratios.__getitem__)
        out[f"{name}_worst"] = {"clip": worst, "ratio": round(ratios[worst], 3)}
    return out


def measure(path: Path, pool: SandboxPool, threads: int) -> Row:
    """All ways of decoding one clip."""
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
    base, sent = clocks["plain dense"], live(path, pool)
    return Row(
        clip=path.name,
        frames=sent.frames,
        kind="b" if sent.b_frames else "p",
        plain_s=round(sent.plain_s, 3),
        single_s=round(sent.single_s, 3),
        vectors_s=round(sent.vectors_s, 3),
        single_pass=round(sent.plain_s / sent.single_s, 2),
        with_vectors=round(sent.plain_s / sent.vectors_s, 2),
        live_decoded=round(sent.decoded / max(1, sent.frames), 3),
        sandbox=round(sent.plain_s / max(1e-3, sent.sandbox_s), 2),
        parallel=round(base.cpu / clocks["dense"].cpu, 2),
        parallel_elapsed=round(base.elapsed / clocks["dense"].elapsed, 2),
        decoded=round(shares["dense"], 3),
        sparse=round(clocks["plain sparse"].cpu / clocks["sparse"].cpu, 2),
        sparse_decoded=round(shares["sparse"], 3),
        exact=exact and sent.exact,
    )


def main(arguments: list[str] | None = None) -> int:
    """Print a table and one line of JSON; 1 if a parallel result differed, 2 without footage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clips", nargs="*", type=Path, help="files (default: a selection of the footage)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="decoding threads")
    options = parser.parse_args(arguments)
    footage = find_footage()
    clips = options.clips or ([footage / name for name in CLIPS] if footage is not None else [])
    if not clips:
        print("no footage: set LOOKOUT_FOOTAGE, or name files", file=sys.stderr)
        return 2
    head = (
        "frames",
        "kind",
        "single",
        "decoded",
        "vectors",
        "sandbox",
        "parallel",
        "elapsed",
        "decoded",
        "sparse",
        "decoded",
    )
    print(f"{'clip':40}" + "".join(f"{name:>9}" for name in head))
    rows = []
    with SandboxPool(1, SandboxSettings(modules=("lookout.pruning",))) as pool:
        pool.decode(clips[0].read_bytes(), DecodeRequest(*SIZE, gather=MotionGather(GATHER), limits=LIMITS))
        for clip in clips:
            try:
                row = measure(clip, pool, options.threads)
            except CodecError as error:
                print(f"{clip.name:40}{error}")
                continue
            rows.append(row)
            sent = (
                f"{row.kind:>9}{row.single_pass:9}{row.live_decoded:9.0%}{row.with_vectors:9}{row.sandbox:9}"
            )
            dense = f"{row.parallel:9}{row.parallel_elapsed:9}"
            sparse = f"{row.decoded:9.0%}{row.sparse:9}{row.sparse_decoded:9.0%}"
            print(
                f"{row.clip[:39]:40}{row.frames:9}{sent}{dense}{sparse}{'' if row.exact else '  DIFFERS'}",
                flush=True,
            )
    means = {
        name: statistics.geometric_mean(max(1e-3, getattr(row, name)) for row in rows) for name in RATIOS
    }
    means |= {name: statistics.mean(getattr(row, name) for row in rows) for name in SHARES}
    summary = {
        "threads": options.threads,
        "exact": all(row.exact for row in rows),
        "single_pass": single_pass(rows),
        **{name: round(value, 3) for name, value in means.items()},
        "clips": {row.clip: {k: v for k, v in asdict(row).items() if k != "clip"} for row in rows},
    }
    print(json.dumps(summary))
    return 0 if summary["exact"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
