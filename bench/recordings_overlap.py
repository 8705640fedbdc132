"""What overlapping decode and prefill gives: `make bench-recordings`, its second part.

A recording is decoded for real and its groups are handed to a fake accelerator: it computes nothing and
sleeps as long as a 7B model would take at a stated speed, so that decoding and prefill do not compete for the
cores. The baseline is decoding in order (every frame, on frame threads, as many threads) and then one-shot
prefill. The recording and rho are the paper's own (section 4.3): 30 minutes at 1 FPS, rho 0.2. Groups have
the shipped size; the paper's 32 frames run beside them on the same accelerator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.recordings_answers import QUESTIONS
from bench.results import Results
from bench.shapes import QWEN_7B
from lookout import models
from lookout.models.flops import causal_pairs
from lookout.recordings import Mode, PrefillSettings, Timings, run_groups
from lookout.recordings.analysis import AnalysisSettings, Analyzer
from lookout.video.files import FileFrame, VideoReader
from lookout.video.motion.geometry import Fit
from lookout.video.segments.container import Video
from lookout.video.segments.picture import Painter, frame_geometry
from lookout.video.segments.sampling import Pick
from watchbench.films import FRAMES

SIZE = (448, 448)
PAPER_GROUP = 32
GROUPS = (4, 8, 16, 32, 64)


@dataclass(frozen=True)
class FakeAccelerator:
    """A fake: it computes nothing and sleeps as long as a language model of Qwen2.5-VL-7B's shape would take
    at a stated speed. Tokens a frame: 448x448 pixels in 28x28 cells, two frames a temporal patch."""

    tflops: float
    tokens: int = 128

    def seconds(self, frames: int, before: int) -> float:
        """One group of `frames` behind `before` kept entries."""
        rows = frames * self.tokens
        return QWEN_7B.flops(rows, causal_pairs(rows, before)) / (self.tflops * 1e12)

    def one_shot(self, frames: int) -> float:
        """All frames at once."""
        return self.seconds(frames, 0)

    def groups(self, frames: int, how: PrefillSettings) -> list[float]:
        """Seconds of every group."""
        out, before = [], 0
        for begin in range(0, frames, how.group_frames):
            count = min(how.group_frames, frames - begin)
            out.append(self.seconds(count, before))
            before += how.keeps(count * self.tokens)
        return out


def in_order(path: Path, times_us: Sequence[int], size: tuple[int, int], threads: int) -> int:
    """Plain sequential decoding of the same samples: every frame is decoded, on frame threads."""
    with VideoReader(path) as reader:
        wanted = {pick.pts for pick in reader.picks(times_us=times_us)}
    painter, found = Painter(), 0
    with path.open("rb") as file, Video(file, vectors=False) as video:
        video.context.thread_count, video.context.thread_type = threads, "FRAME"
        for frame in video.frames():
            if frame.pts in wanted:
                painter.paint(frame, frame_geometry(frame, size[1], size[0], Fit.STRETCH))
                found += 1
                if found == len(wanted):
                    break
    return found


def groups(frames: Iterator[FileFrame], size: int) -> Iterator[list[FileFrame]]:
    """Decoded frames in groups."""
    held: list[FileFrame] = []
    for frame in frames:
        held.append(frame)
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held


def piecewise(
    reader: VideoReader, picks: Sequence[Pick], size: int, threads: int
) -> Iterator[list[FileFrame]]:
    """Groups that are decoded when they are asked for, nothing ahead."""
    for begin in range(0, len(picks), size):
        part = picks[begin : begin + size]
        yield list(reader.sample(picks=part, size=SIZE, threads=threads))


@dataclass(frozen=True)
class Overlap:
    """The measurements of one recording.

    `share`: seconds of prefill for each second of decoding. At 1 the two take equally long; then the later
    groups, behind more KV, are slower than decoding, and the earlier ones faster, so that no schedule reaches
    Equation 3's bound.
    """

    path: Path
    seconds: int
    how: PrefillSettings
    threads: int
    share: float

    @property
    def times_us(self) -> list[int]:
        """One sample a second."""
        return [i * 1_000_000 for i in range(self.seconds)]

    def measure(self, results: Results, within: Callable[[], bool]) -> None:
        """What is not measured yet, while `within` says so: decoding in order and ours first, because the
        accelerator's speed follows from it."""
        jobs: dict[str, Callable[[], Any]] = {"in order": self._in_order, "ours": self._ours}
        jobs |= {f"mode {mode.value}": partial(self._mode, mode, results) for mode in reversed(Mode)}
        jobs["paper's groups"] = partial(self._mode, Mode.OVERLAPPED, results, PAPER_GROUP)
        jobs["cores"] = self._cores
        for name, job in tqdm(jobs.items(), unit="run"):
            if f"{self.name} {name}" not in results and within():
                results.add(f"{self.name} {name}", job())

    @property
    def name(self) -> str:
        """Names the measurements of these settings."""
        how = f"groups of {self.how.group_frames}, rho {self.how.rho:g}"
        return f"overlap {self.path.stem}, {self.seconds} s, {how}, share {self.share:g}:"

    def _in_order(self) -> float:
        begun = time.perf_counter()
        in_order(self.path, self.times_us, SIZE, self.threads)
        return time.perf_counter() - begun

    def _ours(self) -> float:
        begun = time.perf_counter()
        with VideoReader(self.path) as reader:
            for _ in reader.sample(times_us=self.times_us, size=SIZE, threads=self.threads):
                pass
        return time.perf_counter() - begun

    def accelerator(self, decode_s: float) -> FakeAccelerator:
        """The accelerator on which prefill takes `share` of decoding's time."""
        needed = sum(FakeAccelerator(1.0).groups(self.seconds, self.how))
        return FakeAccelerator(round(needed / (self.share * decode_s), 1))

    def _mode(self, mode: Mode, results: Results, size: int | None = None) -> dict[str, Any]:
        size = size or self.how.group_frames
        accelerator = self.accelerator(results.found[f"{self.name} ours"])
        slept = iter(accelerator.groups(self.seconds, replace(self.how, group_frames=size)))
        begun = time.perf_counter()
        with VideoReader(self.path) as reader:
            picks = reader.picks(times_us=self.times_us)
            start = time.perf_counter() - begun
            sampling = reader.sample(picks=picks, size=SIZE, threads=self.threads, lookahead=3 * size)
            made = (
                piecewise(reader, picks, size, self.threads)
                if mode is Mode.INTERLEAVED
                else groups(iter(sampling), size)
            )
            busy = (lambda: sampling.busy_s) if mode is Mode.OVERLAPPED else None
            _, timings = run_groups(
                made, lambda _: time.sleep(next(slept)), mode=mode, start_s=start, busy=busy
            )
            sampling.close()
        return {**timings.summary(), "ideal": round(timings.ideal, 3)}

    def bounds(self, accelerator: FakeAccelerator, decode_s: float) -> dict[str, list[float]]:
        """Group size -> [seconds, efficiency] of perfect overlap where every frame takes equally long to
        decode: computed, nothing is run."""
        found = {}
        for size in GROUPS:
            prefill = accelerator.groups(self.seconds, replace(self.how, group_frames=size))
            counts = [min(size, self.seconds - begin) for begin in range(0, self.seconds, size)]
            decode = tuple(count * decode_s / self.seconds for count in counts)
            ideal = Timings(Mode.OVERLAPPED, 0.0, decode, tuple(prefill), 0.0).ideal
            run = Timings(Mode.OVERLAPPED, 0.0, decode, tuple(prefill), ideal)
            found[str(size)] = [round(ideal, 2), round(run.efficiency, 3)]
        return found

    def _cores(self) -> dict[str, Any]:
        return on_cores(self.path, min(120.0, self.seconds), self.threads)

    def summary(self, results: Results) -> dict[str, Any]:
        """What was measured, and the ratios once all of it is."""
        found = {
            name.removeprefix(f"{self.name} "): value
            for name, value in results.found.items()
            if name.startswith(self.name)
        }
        if not {"in order", "ours", *(f"mode {mode.value}" for mode in Mode)} <= found.keys():
            return {"measured": found}
        accelerator = self.accelerator(found["ours"])
        one_shot = accelerator.one_shot(self.seconds)
        together = found["mode overlapped"]
        baseline = found["in order"] + one_shot
        return {
            "frames": self.seconds,
            "group_frames": self.how.group_frames,
            "rho": self.how.rho,
            "tflops": accelerator.tflops,
            "balanced_tflops": round(accelerator.tflops * self.share, 1),
            "in_order_s": round(found["in order"], 2),
            "one_shot_s": round(one_shot, 2),
            "baseline_s": round(baseline, 2),
            "modes": {mode.value: found[f"mode {mode.value}"] for mode in Mode},
            "paper_groups": found.get("paper's groups"),
            "computed": self.bounds(accelerator, together["t_dec"]),
            "efficiency": together["efficiency"],
            "efficiency_to_ideal": round(together["ideal"] / together["t_total"], 3),
            "end_to_end": round(baseline / together["t_total"], 2),
            "end_to_end_bound": round(baseline / together["bound"], 2),
            "sequential_over_overlapped": round(found["mode sequential"]["t_total"] / together["t_total"], 2),
            "cores": found.get("cores"),
        }


def on_cores(path: Path, seconds: float, threads: int) -> dict[str, object]:
    """The tiny model on the same cores that decode."""
    analyzer = Analyzer(models.TINY)
    questions = QUESTIONS[:3]
    base = AnalysisSettings(fps=1.0, end_s=seconds, part_frames=20, threads=threads)
    out: dict[str, object] = {}
    totals = {}
    for name, how in {
        "sequential, one-shot": replace(base, mode=Mode.SEQUENTIAL, prefill=PrefillSettings(FRAMES, 1.0)),
        "overlapped": replace(base, prefill=PrefillSettings(8, 0.5)),
    }.items():
        begun = time.perf_counter()
        with VideoReader(path) as reader:
            _, timings, _ = analyzer.run(reader, questions, how, begun=begun)
        totals[name] = timings.total_s + timings.answer_s
        out[name] = timings.summary()
        print(f"  on the cores, {name}: {timings.summary()}")
    analyzer.close()
    shares = out["sequential, one-shot"]
    assert isinstance(shares, dict)
    whole = shares["t_dec"] + shares["t_prefill"]
    out["ratio"] = round(totals["sequential, one-shot"] / totals["overlapped"], 2)
    out["bound"] = round(whole / max(shares["t_dec"], shares["t_prefill"]), 2)
    return out
