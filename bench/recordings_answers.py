"""How pruning KV changes answers: the first part of `make bench-recordings`.

The trained tiny model answers questions about unseen rendered clips of the length it was trained for. Every
p(yes) is compared with that of an unpruned one-shot prefill, by share of entries kept, group size and score,
with 95 % intervals over clips. Random, evenly spaced and first rows are compared at the same cost. The same
is done with `prune`: only patches that changed are encoded (as with `lookout analyze --prune`), then KV is
pruned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from bench.results import Results
from lookout import models
from lookout.models.engines import Question
from lookout.models.windows import EncodedFrame
from lookout.recordings import PrefillSettings, Score
from lookout.recordings.analysis import AnalysisSettings, Analyzer, encode_frames
from lookout.video.files import FileFrame
from lookout.video.motion.types import Picture
from watchbench import cameras, scenes
from watchbench.evaluation.recorded import ask_recording
from watchbench.films import FRAMES, STEP_S
from watchbench.questions import BY_NAME, NAMES, answers

QUESTIONS = [Question(name, BY_NAME[name].text) for name in NAMES]
RHOS = (0.8, 0.5, 0.2)
SIZES = (2, 8, 20)
SIZE = 4  # groups of the main table: five of them in a clip
PLAIN = (Score.RANDOM, Score.UNIFORM, Score.FIRST)


@dataclass(frozen=True, eq=False)
class Clip:
    """An encoded clip, whole and with changed patches only, and the truth of every question (nan where it is
    a matter of taste)."""

    frames: list[EncodedFrame]
    changed: list[EncodedFrame]
    truth: np.ndarray


def clip_of(analyzer: Analyzer, seed: int, length: int = FRAMES) -> Clip:
    """An unseen rendered clip of `length` frames."""
    grid = analyzer.tower.grid
    times = torch.arange(length) * STEP_S
    step = round(STEP_S * 1e6)
    scene = scenes.sample(1, length * STEP_S, seed)
    shown = cameras.frames(scene, length * STEP_S, grid.height, Fraction(round(1 / STEP_S)))
    frames = [
        FileFrame(i, i, i, i * step, i == 0, Picture.I if i == 0 else Picture.P, False, pixels)
        for i, pixels in enumerate(shown)
    ]
    yes, known = answers(scenes.observe(scene, times).truth)
    truth = torch.where(known[0, -1], yes[0, -1].float(), torch.nan).numpy()
    whole = encode_frames(analyzer.tower, frames, AnalysisSettings(fps=1 / STEP_S), None).frames
    fewer = encode_frames(analyzer.tower, frames, AnalysisSettings(fps=1 / STEP_S, prune=True), None).frames
    return Clip(whole, fewer, truth)


def asked(
    analyzer: Analyzer, frames: Sequence[EncodedFrame], how: PrefillSettings, *, at_end: bool = False
) -> tuple[np.ndarray, int]:
    """p(yes) of every question, and the KV bytes; see `ask_recording`."""
    p, kv = ask_recording(analyzer.engine, frames, how, QUESTIONS, at_end=at_end)
    return np.array(p), kv


@dataclass(frozen=True)
class Setting:
    """One cell of the grid. `prune`: only changed patches were encoded; `at_end`: see `asked`."""

    how: PrefillSettings
    prune: bool = False
    at_end: bool = False

    @property
    def name(self) -> str:
        """For people."""
        text = ", text kept" if self.how.keep_text else ""
        fewer = ", changed patches only" if self.prune else ""
        end = ", questions at the end" if self.at_end else ""
        how = self.how
        return f"rho {how.rho:g}, groups of {how.group_frames}, {how.score.value}{text}{fewer}{end}"


CELLS = ("main", "sizes", "text", "prune", "place")


def grid(cells: Sequence[str]) -> list[Setting]:
    """What is measured: the main table, other group sizes, text kept, changed patches only, where the
    questions of the attention score stand."""
    out: list[Setting] = []
    if "main" in cells:
        out += [Setting(PrefillSettings(SIZE, rho, score)) for rho in RHOS for score in Score]
    if "prune" in cells:
        out += [Setting(PrefillSettings(SIZE, 1.0), prune=True)]
        out += [Setting(PrefillSettings(SIZE, rho, score), prune=True) for rho in RHOS for score in Score]
    if "place" in cells:
        out += [Setting(PrefillSettings(SIZE, rho, Score.ATTENTION), at_end=True) for rho in RHOS]
    if "sizes" in cells:
        out += [Setting(PrefillSettings(size, 0.5, score)) for size in SIZES for score in Score]
    if "text" in cells:
        out += [
            Setting(PrefillSettings(SIZE, rho, score, keep_text=True))
            for rho in (0.5, 0.2)
            for score in Score
        ]
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


def measure(
    results: Results,
    seeds: Sequence[int],
    settings: Sequence[Setting],
    model: Path = models.TINY,
    device: str = "cpu",
) -> None:
    """Every clip, by its seed, in every setting that is not measured yet."""
    left = [seed for seed in seeds if f"clip {seed}" not in results]
    if not left:
        return
    analyzer = Analyzer(model, device=device, dtype="float32")
    count = len(seeds)
    with tqdm(
        total=count * len(settings),
        initial=(count - len(left)) * len(settings),
        unit="prefill",
        disable=None,
    ) as bar:
        for seed in left:
            clip = clip_of(analyzer, seed)
            whole, bytes_ = asked(analyzer, clip.frames, PrefillSettings(FRAMES, 1.0))
            tokens = sum(len(f.kept) for f in clip.changed) / sum(len(f.kept) for f in clip.frames)
            cells = {}
            for setting in settings:
                frames = clip.changed if setting.prune else clip.frames
                p, kv = asked(analyzer, frames, setting.how, at_end=setting.at_end)
                dp, changed = np.abs(p - whole).mean(), ((p > 0.5) != (whole > 0.5)).mean()
                cells[setting.name] = [float(dp), float(changed), right(p, clip.truth), kv / bytes_]
                bar.update()
            value = {"right": right(whole, clip.truth), "tokens": tokens, "cells": cells}
            results.add(f"clip {seed}", value)
    analyzer.close()


def quality(results: Results, count: int, first: int, cells: Sequence[str]) -> dict[str, object]:
    """The whole grid."""
    settings = grid(cells)
    measure(results, range(first, first + count), settings)
    clips = [results.found[f"clip {seed}"] for seed in range(first, first + count)]
    found: dict[Setting, Quality] = {}
    for setting in settings:
        rows = [clip["cells"][setting.name] for clip in clips if setting.name in clip["cells"]]
        if rows:
            found[setting] = Quality(*(list(column) for column in zip(*rows, strict=True)))
    unpruned = float(np.mean([clip["right"] for clip in clips]))
    tokens = float(np.mean([clip["tokens"] for clip in clips]))
    print(
        f"{count} clips, {len(NAMES)} questions; unpruned: {unpruned:.3f} of known answers right; "
        f"changed patches are {tokens:.3f} of the tokens"
    )
    print(f"{'':68}{'|dp|':>8}  {'95 % interval':18}{'changed':>8}{'right':>8}{'KV':>7}")
    for setting, one in found.items():
        line = one.line()
        span = f"{line['dp_low']:.4f} to {line['dp_high']:.4f}"
        print(
            f"{setting.name:68}{line['dp']:8.4f}  {span:18}{line['changed']:8.3f}{line['right']:8.3f}"
            f"{line['kv']:7.2f}"
        )
    contests = {f"{rho:g}": contest(found, rho) for rho in RHOS} if "main" in cells else {}
    for rho, each in contests.items():
        print(f"rho {rho}: {each}")
    return {
        "clips": count,
        "right": round(unpruned, 4),
        "tokens": round(tokens, 4),
        "dp": {
            f"{rho:g}": {s.how.score.value: q.line()["dp"] for s, q in found.items() if is_main(s, rho)}
            for rho in RHOS
        },
        "kv": {f"{rho:g}": next(q.line()["kv"] for s, q in found.items() if is_main(s, rho)) for rho in RHOS},
        "accuracy": {"1": {"unpruned": round(unpruned, 4)}}
        | {
            f"{rho:g}": {s.how.score.value: q.line()["right"] for s, q in found.items() if is_main(s, rho)}
            for rho in RHOS
        },
        "contests": contests,
        "grid": {setting.name: one.line() for setting, one in found.items()},
    }


def is_main(setting: Setting, rho: float) -> bool:
    """Whether a setting belongs to the main table."""
    how = setting.how
    return (
        how.rho == rho
        and how.group_frames == SIZE
        and not how.keep_text
        and not (setting.prune or setting.at_end)
    )


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
