"""`make bench-recordings`: what pruning KV does to answers, and what overlapping decode and prefill gives.

Answers: the trained tiny model on unseen rendered clips of the length it was trained for. Every p(yes) is
compared with that of the unpruned one-shot prefill, by share of entries kept, group size and score, with 95 %
intervals over clips; random, uniform and first rows stand beside the scores at the same cost.

Overlap: one recording, decoded for real, its groups handed to a fake accelerator: it computes nothing and
sleeps as long as a 7B model would take at a stated speed, so that decoding and prefill do not compete for the
cores. Three configurations, the bound of Equation 3, and sequential decoding with one-shot prefill as the
baseline. Then the same with the tiny model on the cores. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from lookout import models
from lookout.analysis import AnalysisSettings, Analyzer
from lookout.codec import FileFrame, VideoReader
from lookout.codec.container import Video
from lookout.codec.geometry import Fit
from lookout.codec.picture import Painter, frame_geometry
from lookout.engines import Question
from lookout.engines.transformers.prefill import GroupPrefill
from lookout.flops import causal_pairs
from lookout.recordings import GroupPlanner, Mode, PrefillSettings, Score, Timings, grouped, run_groups
from lookout.vision import FrameInput
from lookout.windows import EncodedFrame
from tests.bench.peers import SOURCE, base_clip, repeated
from tests.bench.plots import Lines, line_chart
from tests.bench.shapes import QWEN_7B
from tests.conftest import find_footage
from watchbench import cameras, scenes
from watchbench.questions import BY_NAME, NAMES, answers
from watchbench.sight import FRAMES, HELD_BACK, STEP_S
from watchbench.training import moving_groups

QUESTIONS = [Question(name, BY_NAME[name].text) for name in NAMES]
RHOS = (0.8, 0.5, 0.2)
SIZES = (2, 8, 20)
SIZE = 4  # groups of the main table: five of them in a clip
PLAIN = (Score.RANDOM, Score.UNIFORM, Score.FIRST)
MS = 1000


# What pruning does to answers.


@dataclass(frozen=True, eq=False)
class Clip:
    """An encoded clip, the truth of every question (nan where it is a matter of
    taste), and which groups move."""

    frames: list[EncodedFrame]
    truth: np.ndarray
    moving: np.ndarray


def clips(analyzer: Analyzer, count: int, first: int) -> Iterator[Clip]:
    """Unseen rendered clips, every patch encoded."""
    grid = analyzer.tower.grid
    times = torch.arange(FRAMES) * STEP_S
    for seed in range(first, first + count):
        scene = scenes.sample(1, FRAMES * STEP_S, seed)
        pictures = list(cameras.frames(scene, FRAMES * STEP_S, grid.height, Fraction(round(1 / STEP_S))))
        whole = np.ones((grid.group_rows, grid.group_cols), bool)
        found = analyzer.tower.encode([FrameInput(picture[None], whole) for picture in pictures])
        yes, known = answers(scenes.observe(scene, times).truth)
        truth = torch.where(known[0, -1], yes[0, -1].float(), torch.nan).numpy()
        pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)[None].float() / 255
        moving = (
            moving_groups(pixels, torch.Generator().manual_seed(1))[0].numpy().reshape(FRAMES, *whole.shape)
        )
        step = round(STEP_S * 1e6)
        yield Clip(
            [EncodedFrame(i * step, i == 0, whole, one.tokens) for i, one in enumerate(found)], truth, moving
        )


def only(frames: Sequence[EncodedFrame], keep: np.ndarray) -> list[EncodedFrame]:
    """Frames with some of their tokens; the first stays whole."""
    out = []
    for number, frame in enumerate(frames):
        mask = frame.keep if number == 0 else keep[number]
        out.append(replace(frame, keep=mask, tokens=frame.tokens[torch.from_numpy(mask.ravel())]))
    return out


def asked(analyzer: Analyzer, frames: Sequence[EncodedFrame], how: PrefillSettings) -> tuple[np.ndarray, int]:
    """p(yes) of every question, and the KV bytes."""
    planner = GroupPlanner(analyzer.engine.layout, how)
    run = GroupPrefill(analyzer.engine, how, questions=QUESTIONS)
    for group in grouped(frames, how.group_frames):
        run.add(planner.plan("clip", group, run.last), group)
    return np.array([each.answer.p_yes for each in run.ask(QUESTIONS)[0]]), run.kv.kv_bytes


@dataclass(frozen=True)
class Setting:
    """One cell of the grid. `pruned`: with the tokens of still places left out before."""

    how: PrefillSettings
    pruned: bool = False

    @property
    def name(self) -> str:
        """For people."""
        text = ", text kept" if self.how.keep_text else ""
        still = ", still tokens dropped" if self.pruned else ""
        return f"rho {self.how.rho:g}, groups of {self.how.group_frames}, {self.how.score.value}{text}{still}"


CELLS = ("main", "sizes", "text", "still")


def grid(cells: Sequence[str]) -> list[Setting]:
    """What is measured: the main table, other group sizes, text kept, still tokens dropped before."""
    out: list[Setting] = []
    if "main" in cells:
        out += [Setting(PrefillSettings(SIZE, rho, score)) for rho in RHOS for score in Score]
    if "sizes" in cells:
        out += [Setting(PrefillSettings(size, 0.5, score)) for size in SIZES for score in Score]
    if "text" in cells:
        out += [
            Setting(PrefillSettings(SIZE, rho, score, keep_text=True))
            for rho in (0.5, 0.2)
            for score in Score
        ]
    if "still" in cells:
        out += [Setting(PrefillSettings(SIZE, 1.0), True)]
        out += [Setting(PrefillSettings(SIZE, rho, score), True) for rho in (0.5, 0.2) for score in Score]
    return out


@dataclass
class Quality:
    """Per clip: mean |dp| and share of changed answers; correct answers of those with a truth."""

    dp: list[float]
    changed: list[float]
    right: list[float]
    kv: list[float]

    def line(self) -> dict[str, float]:
        """Means, and the half width of the interval of |dp|."""
        low, high = interval(np.array(self.dp))
        return {
            "dp": round(float(np.mean(self.dp)), 4),
            "dp_low": round(low, 4),
            "dp_high": round(high, 4),
            "changed": round(float(np.mean(self.changed)), 4),
            "right": round(float(np.mean(self.right)), 4),
            "kv": round(float(np.mean(self.kv)), 3),
        }


def interval(values: np.ndarray, draws: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of a mean over clips."""
    draw = np.random.default_rng(0)
    means = values[draw.integers(0, len(values), (draws, len(values)))].mean(1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def right(p: np.ndarray, truth: np.ndarray) -> float:
    """Share of known answers that are right."""
    known = ~np.isnan(truth)
    return float(((p > 0.5) == (truth > 0.5))[known].mean())


def quality(count: int, first: int, cells: Sequence[str]) -> dict[str, object]:
    """The whole grid."""
    analyzer = Analyzer(models.TINY)
    settings = grid(cells)
    found = {setting: Quality([], [], [], []) for setting in settings}
    base: list[float] = []
    with tqdm(total=count * len(settings), unit="prefill", smoothing=0) as bar:
        for clip in clips(analyzer, count, first):
            whole, bytes_ = asked(analyzer, clip.frames, PrefillSettings(FRAMES, 1.0))
            base.append(right(whole, clip.truth))
            fewer = only(clip.frames, clip.moving)
            for setting, one in found.items():
                p, kv = asked(analyzer, fewer if setting.pruned else clip.frames, setting.how)
                one.dp.append(float(np.abs(p - whole).mean()))
                one.changed.append(float(((p > 0.5) != (whole > 0.5)).mean()))
                one.right.append(right(p, clip.truth))
                one.kv.append(kv / bytes_)
                bar.update()
    analyzer.close()
    print(f"{count} clips, {len(NAMES)} questions; unpruned: {np.mean(base):.3f} of known answers right")
    print(f"{'':58}{'|dp|':>8}  {'95 % interval':18}{'changed':>8}{'right':>8}{'KV':>7}")
    for setting, one in found.items():
        line = one.line()
        span = f"{line['dp_low']:.4f} to {line['dp_high']:.4f}"
        print(
            f"{setting.name:58}{line['dp']:8.4f}  {span:18}{line['changed']:8.3f}{line['right']:8.3f}"
            f"{line['kv']:7.2f}"
        )
    contests = {f"{rho:g}": contest(found, rho) for rho in RHOS} if "main" in cells else {}
    for rho, each in contests.items():
        print(f"rho {rho}: {each}")
    main = {
        f"{rho:g}": {s.how.score.value: q.line()["dp"] for s, q in found.items() if is_main(s, rho)}
        for rho in RHOS
    }
    kv = {f"{rho:g}": next(q.line()["kv"] for s, q in found.items() if is_main(s, rho)) for rho in RHOS}
    return {
        "clips": count,
        "right": round(float(np.mean(base)), 4),
        "dp": main,
        "kv": kv,
        "contests": contests,
        "grid": {setting.name: one.line() for setting, one in found.items()},
    }


def is_main(setting: Setting, rho: float) -> bool:
    """Whether a setting belongs to the main table."""
    how = setting.how
    return how.rho == rho and how.group_frames == SIZE and not how.keep_text and not setting.pruned


def contest(found: dict[Setting, Quality], rho: float) -> dict[str, str]:
    """Each score against each plain choice, paired by clip: difference of |dp| with its interval."""
    at = {s.how.score: np.array(q.dp) for s, q in found.items() if is_main(s, rho)}
    out = {}
    for score in Score:
        if score in PLAIN:
            continue
        for plain in PLAIN:
            apart = at[score] - at[plain]
            low, high = interval(apart)
            verdict = "better" if high < 0 else "worse" if low > 0 else "no difference"
            out[f"{score.value} - {plain.value}"] = (
                f"{apart.mean():+.4f} ({low:+.4f} to {high:+.4f}), {verdict}"
            )
    return out


# Overlap.


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

    def prefill(self, frames: int, before: int) -> int:
        """Sleep; returns the rows."""
        time.sleep(self.seconds(frames, before))
        return frames * self.tokens


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


def piecewise(reader: VideoReader, picks: list, size: int, threads: int) -> Iterator[list[FileFrame]]:  # type: ignore[type-arg]
    """Groups that are decoded when they are asked for, nothing ahead."""
    for begin in range(0, len(picks), size):
        part = picks[begin : begin + size]
        yield list(reader.sample(picks=part, size=(448, 448), threads=threads))


def overlap(
    path: Path, seconds: int, how: PrefillSettings, tflops: float | None, threads: int
) -> dict[str, object]:
    """The three configurations on one recording, against sequential decoding and one-shot prefill."""
    times = [i * 1_000_000 for i in range(seconds)]
    begun = time.perf_counter()
    in_order(path, times, (448, 448), threads)
    plain_s = time.perf_counter() - begun
    with VideoReader(path) as reader:
        begun = time.perf_counter()
        for _ in reader.sample(times_us=times, size=(448, 448), threads=threads):
            pass
        decode_s = time.perf_counter() - begun
    accelerator = FakeAccelerator(tflops or balanced(how, seconds, decode_s))
    one_shot_s = accelerator.one_shot(seconds)
    time.sleep(one_shot_s)
    print(
        f"{seconds} frames at 1 FPS; fake accelerator at {accelerator.tflops:.0f} TFLOP/s; decoding in order "
        f"{plain_s:.2f} s, one-shot prefill {one_shot_s:.2f} s"
    )
    runs: dict[str, Timings] = {}
    for mode in Mode:
        begun = time.perf_counter()
        with VideoReader(path) as reader:
            picks = reader.picks(times_us=times)
            start = time.perf_counter() - begun
            before = 0

            def prefill(group: list[FileFrame]) -> int:
                nonlocal before
                rows = accelerator.prefill(len(group), before)
                before += how.keeps(rows)
                return rows

            sampling = reader.sample(picks=picks, size=(448, 448), threads=threads, lookahead=48)
            made = (
                piecewise(reader, picks, how.group_frames, threads)
                if mode is Mode.INTERLEAVED
                else groups(iter(sampling), how.group_frames)
            )
            busy = (lambda: sampling.busy_s) if mode is Mode.OVERLAPPED else None  # noqa: B023
            _, runs[mode.value] = run_groups(made, prefill, mode=mode, start_s=start, busy=busy)
            sampling.close()
        print(f"  {runs[mode.value].summary()}")
    apart, together = runs["sequential"], runs["overlapped"]
    bound = max(apart.t_dec + apart.prefill_s[-1], apart.t_prefill + together.decode_s[0]) + apart.start_s
    return {
        "tflops": round(accelerator.tflops),
        "baseline_s": round(plain_s + one_shot_s, 2),
        "modes": {name: run.summary() for name, run in runs.items()},
        "efficiency": round(together.efficiency, 3),
        "efficiency_to_sequential": round(bound / together.total_s, 3),
        "end_to_end": round((plain_s + one_shot_s) / together.total_s, 2),
        "sequential_over_overlapped": round(apart.total_s / together.total_s, 2),
    }


def balanced(how: PrefillSettings, frames: int, decode_s: float) -> float:
    """The speed in TFLOP/s at which the groups' prefill takes as long as decoding."""
    one = FakeAccelerator(1.0)
    before, total = 0, 0.0
    for begin in range(0, frames, how.group_frames):
        count = min(how.group_frames, frames - begin)
        total += one.seconds(count, before)
        before += how.keeps(count * one.tokens)
    return total / decode_s


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


# What the formulas say.


def formulas() -> dict[str, dict[str, float]]:
    """Sections D.1 and D.2 for an hour at 1 FPS, and by the same formulas what groups of 16 and rho leave.
    The paper's figures: 21.1 GB and 112.5 GB of activations, 393.9 GB of KV (in GiB, float16; its 21.1 is
    a third of what its own formula gives)."""
    tokens, width, mlp, layers = 3600 * 256, 4096, 14336, 28
    group = 16 * 256
    gib = 1 << 30
    kv = 2 * layers * (tokens + 256) * width * 2 / gib

    def activations(rows: int) -> tuple[float, float]:
        return (3 * rows * width + 8 * 1024 * 1024) * 2 / gib, rows * (2 * width + 4 * mlp) * 2 / gib

    out = {
        name: {"attention_gib": round(activations(rows)[0], 2), "mlp_gib": round(activations(rows)[1], 2)}
        for name, rows in (("one shot", tokens), ("groups of 16", group))
    }
    out["kv_gib"] = {f"rho {rho:g}": round(kv * rho, 1) for rho in (1.0, 0.5, 0.2)}
    return out


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clips", type=int, default=48, help="rendered clips")
    parser.add_argument("--first", type=int, default=HELD_BACK, help="seed of the first clip")
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS), help="parts of the grid")
    parser.add_argument("--only", choices=("quality", "overlap"), help="half of it")
    parser.add_argument("--recording", type=Path, help="a file (default: 1080p made of real footage)")
    parser.add_argument("--seconds", type=int, default=300, help="length of the recording")
    parser.add_argument("--group", type=int, default=16, help="frames of a group")
    parser.add_argument("--rho", type=float, default=0.5, help="share of entries kept")
    parser.add_argument(
        "--tflops", type=float, help="speed of the fake accelerator (default: as fast as decoding)"
    )
    parser.add_argument("--threads", type=int, default=2, help="decoding threads")
    parser.add_argument("--keep", type=Path, help="folder for the clips (default: a temporary one)")
    parser.add_argument("--plot", type=Path, help="write the plot into this folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    out: dict[str, object] = {"formulas": formulas()}
    if options.only != "overlap":
        out |= quality(options.clips, options.first, options.cells)
        if options.plot is not None:
            draw(options.plot, out)
    footage = find_footage()
    if options.only != "quality" and (footage is not None or options.recording is not None):
        with tempfile.TemporaryDirectory(prefix="lookout-recordings-") as scratch:
            folder = options.keep or Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            path = options.recording
            if path is None and footage is not None:
                path = repeated(base_clip(footage / SOURCE, folder, "b250"), options.seconds)
            how = PrefillSettings(options.group, options.rho)
            fake = overlap(path, options.seconds, how, options.tflops, options.threads)
            out["fake_accelerator"] = fake
            out["cores"] = on_cores(path, min(120.0, options.seconds), options.threads)
            out["overlap"], out["end_to_end"] = fake["efficiency"], fake["end_to_end"]
    elif options.only != "quality":
        print("no footage: set LOOKOUT_FOOTAGE for the overlap", file=sys.stderr)
    order = ("overlap", "end_to_end", "dp", "kv")
    print(json.dumps({**{name: out[name] for name in order if name in out}, **out}))
    return 0


def draw(folder: Path, found: dict[str, object]) -> None:
    """|dp| by share kept."""
    main_table = found["dp"]
    assert isinstance(main_table, dict)
    names = next(iter(main_table.values()))
    lines = [Lines(name, [(float(rho), each[name]) for rho, each in main_table.items()]) for name in names]
    folder.mkdir(parents=True, exist_ok=True)
    text = line_chart("Change of p(yes) by share of KV kept", "share kept (rho)", "mean |dp|", lines)
    (folder / "recordings-dp.svg").write_text(text)


if __name__ == "__main__":
    raise SystemExit(main())
