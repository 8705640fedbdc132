"""`make bench-peers`: our reader beside torchcodec and decord, on the same frames, threads and output size.

Real clips are scaled to 1080p and encoded once; long recordings repeat their packets without encoding again.
Every measurement is a process of its own; libraries take turns, and the fastest of each counts. torchcodec
runs on the very FFmpeg libraries that PyAV brings. Finished measurements stay in --results: a run that was
stopped continues after them, and --within ends a run early.

Ratios are the peer's best mode over ours in elapsed time (above 1: we are faster); "cpu" is the same in CPU
seconds, which other work on the machine disturbs less; "floor" is our CPU time over that of decoding just the
frames that any exact reader must decode. "own grid" is our reader on its own grid, which takes an I-frame
near a grid point instead of the exact time: other frames, so it stands beside the ratios and not in them.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import av
from tqdm import tqdm

from bench.plots import Bars, Lines, bar_chart, line_chart
from bench.results import Results
from lookout.video.files import VideoReader
from tests.conftest import find_footage

SIZE = (448, 448)
FPS = 30
CHILD = Path(__file__).with_name("peer_child.py")
SOURCE = "fixed/sam2_dog.mp4"  # 289 frames of a courtyard with fast local motion
X264 = {"preset": "medium", "crf": "23"}
ENCODINGS: dict[str, tuple[str, dict[str, str]]] = {
    "b250": ("libx264", {**X264, "g": "250", "bf": "3"}),
    "p250": ("libx264", {**X264, "g": "250", "bf": "0"}),
    "b30": ("libx264", {**X264, "g": "30", "bf": "3"}),
    "p30": ("libx264", {**X264, "g": "30", "bf": "0"}),
    "hevc250": ("libx265", {"preset": "fast", "crf": "26", "x265-params": "keyint=250:log-level=none"}),
    "av1": ("libsvtav1", {"preset": "9", "crf": "35", "g": "250"}),
}


@dataclass(frozen=True)
class Case:
    """One recording and the times to read from it."""

    name: str
    clip: str
    seconds: int
    gap: float
    offset: float = 0.0
    all_modes: bool = False

    @property
    def times_us(self) -> list[int]:
        """Times to read, in microseconds."""
        count = int((self.seconds - 0.1 - self.offset) / self.gap) + 1
        return [round((self.offset + i * self.gap) * 1e6) for i in range(count)]


CASES = (
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
    Case("every mode: B-frames, GOP 250, 30 s, 1 FPS", "b250", 30, 1, all_modes=True),
)
ONE_FPS, SPARSE = CASES[0].name, CASES[1].name
OURS = ("lookout", "lookout grid", "floor")
GAPS = (0.5, 1, 2, 4, 8, 16)


@dataclass
class Best:
    """The fastest run of one library, and of each of its modes."""

    elapsed: float = float("inf")
    cpu: float = float("inf")
    mib: float = 0.0
    frames: int = 0
    mode: str = ""
    modes: dict[str, float] = field(default_factory=dict)

    def add(self, mode: str, run: dict[str, float]) -> None:
        """Take a run."""
        self.modes[mode] = round(min(self.modes.get(mode, float("inf")), run["elapsed"]), 3)
        self.frames = int(run["frames"])
        if run["elapsed"] < self.elapsed:
            self.elapsed, self.mib, self.mode = run["elapsed"], run["mib"], mode
        self.cpu = min(self.cpu, run["cpu"])


def base_clip(source: Path, folder: Path, name: str, size: tuple[int, int] = (1920, 1080)) -> Path:
    """The source at a size (width, height) in one of the encodings; made once."""
    path = folder / (f"{name}.mp4" if size == (1920, 1080) else f"{name}-{size[1]}p.mp4")
    if path.exists():
        return path
    codec, options = ENCODINGS[name]
    with av.open(str(source)) as read, av.open(str(path) + ".part", "w", format="mp4") as out:
        stream = out.add_stream(codec, rate=Fraction(FPS))
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.options = options
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


def modes(threads: int, everything: bool) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Library -> its modes; not `everything`: those that can be the fastest."""
    torch: list[tuple[str, dict[str, Any]]] = []
    for mode in ("exact", "approximate") if everything else ("approximate",):
        for decoders in sorted({1, threads}):
            how = {"mode": mode, "decoders": decoders, "resize": "transform"}
            torch.append((f"{mode}, {decoders} decoder{'s' * (decoders > 1)}", how))
    if everything:
        torch.append(("exact, torchvision", {"mode": "exact", "decoders": 1, "resize": "torchvision"}))
        torch.append(("mappings, 1 decoder", {"mode": "mappings", "decoders": 1, "resize": "transform"}))
    decord: list[tuple[str, dict[str, Any]]] = [("1 reader", {"decoders": 1})]
    if everything and threads > 1:
        decord.append((f"{threads} readers", {"decoders": threads}))
    ours: dict[str, list[tuple[str, dict[str, Any]]]] = {
        name: [("", {})] for name in ("lookout", "lookout grid", "floor")
    }
    return {**ours, "torchcodec": torch, "decord": decord}


class Runner:
    """Starts measurements."""

    def __init__(self, folder: Path, threads: int, decord: str | None) -> None:
        self.folder, self.threads, self.decord = folder, threads, decord
        self.libraries = ffmpeg_links(folder)

    def run(self, path: Path, times_us: list[int], library: str, how: dict[str, Any]) -> dict[str, float]:
        """One measurement."""
        job = {
            "path": str(path),
            "times_us": times_us,
            "size": SIZE,
            "threads": self.threads,
            "library": library,
            **how,
        }
        if how.get("mode") == "mappings":
            job["mappings"] = mappings(path)
        program = self.decord if library == "decord" and self.decord else sys.executable
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if library == "torchcodec":
            environment["LD_LIBRARY_PATH"] = self.libraries
        done = subprocess.run(
            [program, str(CHILD), json.dumps(job)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{library} {how}: {done.stderr.strip().splitlines()[-1:]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    def measure(self, path: Path, times_us: list[int], everything: bool, repeat: int) -> dict[str, Best]:
        """Every library on one recording; libraries take turns."""
        plan = modes(self.threads, everything)
        if self.decord is None and find_spec("decord") is None:
            plan.pop("decord")
        best = {library: Best() for library in plan}
        for _ in range(repeat):
            for library, each in plan.items():
                for mode, how in each:
                    try:
                        best[library].add(mode, self.run(path, times_us, library, how))
                    except RuntimeError as error:
                        tqdm.write(f"  {error}")
        return {library: found for library, found in best.items() if found.frames}


def mappings(path: Path) -> str:
    """The frame index that torchcodec's third seek mode takes, as ffprobe would write it."""
    with VideoReader(path) as reader:
        table = reader.table
        order = sorted(range(len(table)), key=lambda i: int(table.pts[i]))
        step = int(table.pts[order[1]] - table.pts[order[0]])
        frames = [{"pts": int(table.pts[i]), "duration": step, "key_frame": int(table.key[i])} for i in order]
    return json.dumps({"frames": frames})


@dataclass
class Row:
    """One case as it came out."""

    case: str
    samples: int
    ours_s: float
    peers_s: dict[str, float]
    ratio: dict[str, float]
    cpu: dict[str, float]
    floor: float
    mib: dict[str, float]
    modes: dict[str, dict[str, float]]
    own_grid_s: float
    load: float


def row_of(case: str, samples: int, best: dict[str, Best]) -> Row:
    """Ratios of one case."""
    ours = best["lookout"]
    peers = {name: found for name, found in best.items() if name not in OURS}
    return Row(
        case=case,
        samples=samples,
        ours_s=round(ours.elapsed, 3),
        peers_s={name: round(found.elapsed, 3) for name, found in peers.items()},
        ratio={name: round(found.elapsed / ours.elapsed, 2) for name, found in peers.items()},
        cpu={name: round(found.cpu / ours.cpu, 2) for name, found in peers.items()},
        floor=round(ours.cpu / best["floor"].cpu, 2) if "floor" in best else 0.0,
        mib={name: round(found.mib) for name, found in best.items() if name not in OURS[1:]},
        modes={name: found.modes for name, found in peers.items()},
        own_grid_s=round(best["lookout grid"].elapsed, 3),
        load=round(os.getloadavg()[0], 1),
    )


def show(row: Row) -> None:
    """One line of the table."""
    peers = "".join(
        f"{name:>12} {row.peers_s[name]:7.2f} s {row.ratio[name]:5.2f}x (cpu {row.cpu[name]:.2f}x)"
        for name in row.ratio
    )
    memory = ", ".join(f"{name} {size:.0f}" for name, size in row.mib.items())
    tqdm.write(
        f"{row.case:42}{row.samples:5} ours {row.ours_s:7.2f} s (own grid {row.own_grid_s:.2f} s){peers}  "
        f"floor {row.floor:.2f}x  MiB: {memory}"
    )
    for name, each in row.modes.items():
        if len(each) > 2:
            tqdm.write(f"{'':12}{name}: " + "; ".join(f"{mode} {took:.2f} s" for mode, took in each.items()))
    sys.stdout.flush()


def main() -> int:
    """Measure, print and, if asked, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="of every library")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each; the fastest counts")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--decord", help="another Python interpreter that has decord")
    parser.add_argument("--keep", type=Path, default=Path("out/peers-clips"), help="folder for the clips")
    parser.add_argument("--results", type=Path, default=Path("out/peers.jsonl"), help="finished measurements")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--within", type=float, help="begin no measurement after so many seconds")
    parser.add_argument("--no-gaps", action="store_true", help="leave out sampling gaps and thread counts")
    parser.add_argument("--plot", type=Path, help="write the two plots into this folder")
    options = parser.parse_args()
    footage = find_footage()
    if footage is None:
        print("no footage: set LOOKOUT_FOOTAGE to a folder of clips", file=sys.stderr)
        return 2
    results = Results(options.results, fresh=options.fresh)
    begun = time.monotonic()
    options.keep.mkdir(parents=True, exist_ok=True)
    runner = Runner(options.keep, options.threads, options.decord)
    jobs = Bench(runner, footage / SOURCE, options.repeat).jobs(options.only, gaps=not options.no_gaps)
    with tqdm(total=len(jobs), unit="measurement", smoothing=0) as bar:
        for name, job in jobs.items():
            late = options.within is not None and time.monotonic() - begun > options.within
            if name not in results.found and not late:
                results.add(name, job())
            bar.update()
    summary = summary_of(results.found, list(jobs), options.threads)
    if options.plot is not None:
        draw(options.plot, [Row(**row) for row in summary["cases"]], summary["gaps"])
    print(json.dumps(summary))
    return 0 if not summary["missing"] else 3


@dataclass(frozen=True)
class Bench:
    """All measurements by name; each is made when it is called."""

    runner: Runner
    source: Path
    repeat: int

    def jobs(self, only: str, *, gaps: bool) -> dict[str, Callable[[], Any]]:
        """The cases whose name holds `only`, the gaps of figure 6, and thread counts."""
        jobs: dict[str, Callable[[], Any]] = {
            case.name: partial(self._case, case) for case in CASES if only in case.name
        }
        if gaps:
            jobs |= {f"gap {gap:g}": partial(self._gap, gap) for gap in GAPS}
            counts = sorted({1, 2, os.cpu_count() or 1})
            jobs |= {f"threads {count}": partial(self._threads, count) for count in counts}
        return jobs

    def _recording(self, clip: str, seconds: int) -> Path:
        return repeated(base_clip(self.source, self.runner.folder, clip), seconds)

    def _case(self, case: Case) -> dict[str, Any]:
        """One row of the table."""
        path = self._recording(case.clip, case.seconds)
        repeat = 1 if case.seconds >= 300 and case.gap < 5 else self.repeat
        best = self.runner.measure(path, case.times_us, case.all_modes, repeat)
        row = row_of(case.name, len(case.times_us), best)
        show(row)
        return asdict(row)

    def _gap(self, gap: float) -> dict[str, Any]:
        """Seconds by the gap between samples (the paper's figure 6), one minute of B-frames."""
        times = Case("", "b250", 60, gap, 0.5).times_us
        best = self.runner.measure(self._recording("b250", 60), times, False, self.repeat)
        return {
            name: {"s": round(each.elapsed, 2), "cpu_s": round(each.cpu, 2)}
            for name, each in best.items()
            if name not in OURS[1:]
        }

    def _threads(self, count: int) -> dict[str, float]:
        """Our elapsed and CPU seconds with so many threads, one minute of B-frames at 1 FPS."""
        runner = Runner(self.runner.folder, count, None)
        times = Case("", "b250", 60, 1).times_us
        path = self._recording("b250", 60)
        runs = [runner.run(path, times, "lookout", {}) for _ in range(self.repeat)]
        return {key: round(min(run[key] for run in runs), 3) for key in ("elapsed", "cpu")}


def summary_of(found: dict[str, Any], wanted: list[str], threads: int) -> dict[str, Any]:
    """What the last line says, the rows in the order of the cases."""
    rows = [found[case.name] for case in CASES if case.name in found and case.name in wanted]
    named = {row["case"]: min(row["ratio"].values()) for row in rows if row["ratio"]}
    spent = {row["case"]: min(row["cpu"].values()) for row in rows if row["cpu"]}
    scaling = {name.split()[1]: each for name, each in found.items() if name.startswith("threads ")}
    return {
        "b_1fps": named.get(ONE_FPS),
        "sparse": named.get(SPARSE),
        "worst": min(named.values(), default=None),
        "floor": max((row["floor"] for row in rows), default=None),
        "cpu": {
            "b_1fps": spent.get(ONE_FPS),
            "sparse": spent.get(SPARSE),
            "worst": min(spent.values(), default=None),
        },
        "threads": threads,
        "gaps": {name.split()[1]: each for name, each in found.items() if name.startswith("gap ")},
        "scaling": {
            count: round(scaling["1"]["elapsed"] / each["elapsed"], 2)
            for count, each in scaling.items()
            if "1" in scaling
        },
        "missing": [name for name in wanted if name not in found],
        "cases": rows,
    }


def draw(folder: Path, rows: list[Row], gaps: dict[str, dict[str, dict[str, float]]]) -> None:
    """The two plots."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted({name for row in rows for name in row.ratio})
    bars = [Bars(row.case, {name: row.ratio[name] for name in names if name in row.ratio}) for row in rows]
    chart = bar_chart("Times faster than the peer's best mode (1080p to 448x448)", bars, mark=1.0)
    (folder / "peers.svg").write_text(chart)
    if gaps:
        libraries = sorted({name for each in gaps.values() for name in each})
        lines = [
            Lines(name, [(float(gap), each[name]["s"]) for gap, each in gaps.items() if name in each])
            for name in libraries
        ]
        text = line_chart(
            "One minute of 1080p by sampling gap", "seconds between samples", "seconds to read", lines
        )
        (folder / "peers-gaps.svg").write_text(text)


if __name__ == "__main__":
    raise SystemExit(main())
