"""Chooses a checkpoint's settings from clips: preset, anchors, and how the KV of a recording is pruned."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lookout.models import SamplingNumbers, window_defaults
from lookout.models.engines import Question, load_engine
from lookout.models.engines.costs import window_cost
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.families import load_tower
from lookout.models.presets import DEFAULT, PRESETS
from lookout.models.vision import Tower
from lookout.models.windows import PRESETS as WINDOWS, Planner, Policy, WindowSettings
from lookout.pruning import MaskPolicy, keeping_everything
from lookout.recordings import PrefillSettings, Score
from lookout.streams import ClipWindow
from watchbench.evaluation.clip_windows import (
    ClipStream,
    answer_streams,
    encode_clip,
    prefill_flops,
    vision_flops,
)
from watchbench.evaluation.evaluate import Progress
from watchbench.evaluation.intervals import Drawn, Table, counted, edges, mean_f1
from watchbench.evaluation.labels import LabelledClip
from watchbench.evaluation.recorded import ask_recording

LEAST_CLIPS: Final = 12
"""Clips with an answer to a question, of which `LEAST_TRUE` show it: with fewer the default stays, because an
interval over a few clips is too narrow."""
LEAST_TRUE: Final = 4
MARGINS: Final = {True: 0.02, False: 0.01}
"""By whether there are labels: F1, and |dp|, that a cheaper setting may lose at most."""
CHEAPER: Final = 0.9  # as a share of the default's cost
FULL, STRIDES = "every token", "strides"
RECORDING_FRAMES: Final = 128  # most frames of a clip used as a recording
PLAIN: Final = PrefillSettings()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting of the fleet: the options of `lookout up` that choose it, and what they mean."""

    options: str
    masks: MaskPolicy
    windows: WindowSettings


def candidates(sampling: SamplingNumbers) -> dict[str, Candidate]:
    """Return the settings to compare by name; `FULL` is the reference, `DEFAULT` the choice unless another is
    better.
    """
    default = PRESETS[DEFAULT]
    whole = WINDOWS["whole"]
    found = {
        FULL: Candidate("--set prune=false --set reuse=false", keeping_everything(default.masks), whole),
        "whole windows": Candidate("--set reuse=false", default.masks, whole),
    }
    for name, preset in PRESETS.items():
        found[name] = Candidate("" if name == DEFAULT else f"--preset {name}", preset.masks, preset.windows)
    samples = sampling.block_samples
    usual = min(default.masks.anchor_samples or samples, samples)
    for number in sorted({samples, max(1, usual // 2)} - {usual}, reverse=True):
        masks = replace(default.masks, anchor_samples=number)
        options = f"--set anchor_samples={number}"
        found[f"an anchor every {number}"] = Candidate(options, masks, default.windows)
    return found


def prefills() -> dict[str, PrefillSettings]:
    """Return the ways to keep a recording's KV by name; the first is the reference."""
    pairs = [(rho, score) for rho in (0.5, 0.2) for score in (Score.RANDOM, Score.KEY_NORM)]
    names = {f"rho {rho:g}, {score.value}": replace(PLAIN, rho=rho, score=score) for rho, score in pairs}
    return {"rho 1": replace(PLAIN, rho=1.0), **names}


@dataclass(slots=True)
class Tally:
    """The results of one setting on all clips. Per clip and question: true positives, false negatives, false
    positives, true negatives, and |dp| from the reference (NaN: not asked). Per clip: the cost, and the share
    of tokens kept.
    """

    counts: list[list[tuple[int, int, int, int]]] = field(default_factory=list)
    dp: list[list[float]] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)

    def add(
        self, asked: Mapping[str, tuple[Sequence[float], Sequence[bool], Sequence[float]]], cost: float
    ) -> None:
        """Add a clip: by question p(yes) and truth of its scored windows, and |dp| of all."""
        self.counts.append([counted(p, true) for p, true, _ in asked.values()])
        self.dp.append([float(np.mean(dp)) if len(dp) else np.nan for _, _, dp in asked.values()])
        self.cost.append(cost)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Settings compared on the same clips.

    Attributes:
        tallies: The settings by name.
        own: The setting to keep unless another is better.
        full: The reference, whose cost is 1.
        questions: The questions, in the order of the tallies.
        labelled: Whether to compare by F1; if not, by |dp|.
    """

    tallies: Mapping[str, Tally]
    own: str
    full: str
    questions: Sequence[str]
    labelled: bool

    def cost(self, name: str) -> float:
        """Cost of a setting as a share of the reference's."""
        return float(np.mean(self.tallies[name].cost) / np.mean(self.tallies[self.full].cost))

    def row(self, name: str, rows: Sequence[int] | None = None) -> dict[str, Any]:
        """Return F1 (|dp| without labels) of a setting for some questions, by how much it is better than the
        default's, both with 95 % intervals, and a verdict."""
        rows = range(len(self.questions)) if rows is None else rows
        values, draws = self._value(name, rows)
        own, own_draws = self._value(self.own, rows)
        row: dict[str, Any] = {"cost": round(self.cost(name), 4), self.measure: _rounded(values)}
        if kept := self.tallies[name].kept:
            row["tokens kept"] = round(float(np.mean(kept)), 4)
        if not np.isnan(draws).all():
            row[f"{self.measure} 95 %"] = edges(draws, 4)
        if name == self.own or np.isnan(draws - own_draws).all():
            return row
        sign = 1 if self.labelled else -1
        row["better by"] = _rounded(sign * (values - own))
        row["better by 95 %"] = self._span(sign * (draws - own_draws), rows)
        row["verdict"] = self._verdict(name, row["better by 95 %"][0], rows)
        return row

    @property
    def measure(self) -> str:
        """Name of the measure that is compared."""
        return "f1" if self.labelled else "dp"

    def enough(self, rows: Sequence[int]) -> bool:
        """Whether there are enough clips for a decision about some questions."""
        if self._clips(rows) < LEAST_CLIPS:
            return False
        true = np.array(self.tallies[self.own].counts)[:, rows][..., :2].sum((1, 2))
        return not self.labelled or int((true > 0).sum()) >= LEAST_TRUE

    def best(self, names: Sequence[str], rows: Sequence[int] | None = None) -> str:
        """Return the setting to use: of those better than the default the one with the best value, else the
        cheapest one that is as good, else the default.
        """
        found = {name: self.row(name, rows) for name in names if name != self.own}
        better = [name for name, row in found.items() if row.get("verdict") == "better"]
        if better:
            return max(better, key=lambda name: (found[name]["better by"], -found[name]["cost"]))
        equal = [name for name, row in found.items() if row.get("verdict") == "as good, cheaper"]
        return min(equal, key=lambda name: (found[name]["cost"], name)) if equal else self.own

    def _clips(self, rows: Sequence[int]) -> int:
        """Count the clips with a scored answer to one of these questions."""
        tally = self.tallies[self.own]
        if self.labelled:
            return int((np.array(tally.counts)[:, rows].sum((1, 2)) > 0).sum())
        return int((~np.isnan(np.array(tally.dp)[:, rows])).any(1).sum())

    def _span(self, draws: NDArray[np.float64], rows: Sequence[int]) -> list[float]:
        low, high = edges(draws, 4)
        if low == high and self.labelled:
            # No clip differs: by the rule of three, up to 3 in this many unseen clips may (95 %).
            apart = min(1.0, 3 / max(1, self._clips(rows)))
            return [round(low - apart, 4), round(high + apart, 4)]
        return [low, high]

    def _value(self, name: str, rows: Sequence[int]) -> tuple[float, NDArray[np.float64]]:
        tally = self.tallies[name]
        drawn = Drawn.of(len(tally.cost))
        if self.labelled:
            table: Table = np.array(tally.counts)
            return float(mean_f1(table.sum(0), rows)), drawn.f1(table, rows)
        dp = np.array(tally.dp)[:, list(rows)]
        known = ~np.isnan(dp)
        means = np.where(known.any(1), np.where(known, dp, 0).sum(1) / np.maximum(known.sum(1), 1), np.nan)
        return float(np.nanmean(means)) if known.any() else np.nan, drawn.mean(means)

    def _verdict(self, name: str, low: float, rows: Sequence[int]) -> str:
        if not self.enough(rows):
            return "too few clips"
        cost = self.cost(name) / self.cost(self.own)
        # |dp| measures the distance to full windows, not correctness, so it does not justify more FLOPs.
        if low > 0 and (self.labelled or cost <= 1):
            return "better"
        if low > -MARGINS[self.labelled] and cost <= CHEAPER:
            return "as good, cheaper"
        return "no"


@dataclass(frozen=True, slots=True)
class Choices:
    """The results of the comparison, and the settings to use."""

    windows: Comparison
    recordings: Comparison
    options: Mapping[str, str]
    clips: int
    given: str = ""
    """Options of `lookout up` for the sampling that was asked for."""

    @property
    def presets(self) -> dict[str, str]:
        """Return the preset for each question: `strides` if it is better or as good, else `default`."""
        return {
            question: self.windows.best([STRIDES], [row])
            for row, question in enumerate(self.windows.questions)
        }

    @property
    def setting(self) -> str:
        """Return the setting for a deployment that asks all of the questions."""
        names = [name for name in self.options if name not in (DEFAULT, STRIDES)]
        found = self.windows.best(names)
        if found == DEFAULT and set(self.presets.values()) == {STRIDES}:
            return STRIDES
        return found

    @property
    def prefill(self) -> str:
        """Return the name of the way to keep a recording's KV."""
        return self.recordings.best(list(self.recordings.tallies))

    def line(self, model: Path) -> str:
        """Return the commands with the chosen settings."""
        folder = shlex.quote(str(model))
        words = ["lookout up --model", folder, self.options[self.setting], self.given]
        up = " ".join(word for word in words if word)
        how = prefills()[self.prefill]
        analyze = f"lookout analyze --model {folder}" + (
            "" if how.rho == PLAIN.rho else f" --rho {how.rho:g}"
        )
        if how.score is not PLAIN.score:
            analyze += f' (in Python: score="{how.score.value}")'
        return f"{up}; {analyze}"

    def as_json(self, model: Path) -> dict[str, Any]:
        """Return all rows, the preset of each question, and the line of settings."""
        return {
            "clips": self.clips,
            "by": self.windows.measure,
            "settings": {name: self.windows.row(name) for name in self.windows.tallies},
            "questions": {
                question: {"preset": self.presets[question]}
                | {name: self.windows.row(name, [row]) for name in self.windows.tallies}
                for row, question in enumerate(self.windows.questions)
            },
            "recordings": {name: self.recordings.row(name) for name in self.recordings.tallies},
            "chosen": {"setting": self.setting, "recordings": self.prefill},
            "line": self.line(model),
        }


def choose(
    model: Path,
    clips: Sequence[LabelledClip],
    questions: Sequence[str],
    *,
    labelled: bool,
    window_s: float | None = None,
    stride_s: float | None = None,
    fps: float | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    progress: Progress = lambda clips, _: clips,
) -> Choices:
    """Answer questions about clips under every setting, and compare.

    Args:
        model: Folder of the checkpoint.
        clips: The clips.
        questions: The questions; a labelled clip is asked only those that it has an answer to.
        labelled: Whether to compare F1; if not, |difference of p(yes)| from windows with every token,
            computed in full.
        window_s: Length of a window; None: as the folder says (`lookout.models.window_defaults`).
        stride_s: Seconds by which windows slide; None: as the folder says.
        fps: Sampled frames a second; None: as the folder says.
        device: Where the model runs.
        dtype: Type of the model's arithmetic; None: the device's default.
        progress: Wraps the clips, for a progress bar.

    Raises:
        LookoutError: The model does not load, a clip cannot be read, or sample rate, stride and window do not
            fit together.
    """
    sampling = window_defaults(model).changed(fps=fps, stride_s=stride_s, window_s=window_s)
    run = ClipRun(
        load_tower(model, device=device, dtype=dtype),
        load_engine(model, device, dtype),
        sampling,
        candidates(sampling),
        questions,
    )
    for clip in progress(clips, "clips"):
        run.add(clip, [text for text in questions if not labelled or text in clip.spans])
    run.engine.close()
    return Choices(
        Comparison(run.windows, DEFAULT, FULL, questions, labelled),
        Comparison(run.recordings, _usual(), "rho 1", questions, labelled),
        {name: candidate.options for name, candidate in run.candidates.items()},
        len(clips),
        " ".join(
            f"--set {name}={value:g}"
            for name, value in (("fps", fps), ("stride_s", stride_s), ("window_s", window_s))
            if value is not None
        ),
    )


def _usual() -> str:
    return next(name for name, how in prefills().items() if how == PLAIN)


class ClipRun:
    """Answers clips under every setting; the first is the reference, which keeps every token.

    Attributes:
        windows: The results by setting.
        recordings: The results of clips asked as recordings, by the way to keep their KV.
    """

    def __init__(
        self,
        tower: Tower,
        engine: TransformersEngine,
        sampling: SamplingNumbers,
        found: Mapping[str, Candidate],
        questions: Sequence[str],
    ) -> None:
        self.tower, self.engine, self.sampling, self.candidates = tower, engine, sampling, found
        self.questions = questions
        self.windows = {name: Tally() for name in found}
        self.recordings = {name: Tally() for name in prefills()}

    def add(self, clip: LabelledClip, asked: Sequence[str], *, recording: bool = True) -> None:
        """Add a clip that some questions are asked about, also as a recording."""
        masks = list({candidate.masks: None for candidate in self.candidates.values()})
        encodings = dict(zip(masks, encode_clip(clip.path, self.tower, masks, self.sampling), strict=True))
        questions = [Question(text, text) for text in asked]
        full: list[ClipWindow] | None = None
        for name, candidate in self.candidates.items():
            settings = candidate.windows.sampled(self.sampling)
            streams = encodings[candidate.masks]
            answered = answer_streams(self.engine, settings, streams, questions, key=False)
            full = answered if full is None else full
            cost = stride_flops(self.engine, settings, streams, answered, self.tower)
            self.windows[name].add(self._scored(clip, asked, answered, full), cost)
            self.windows[name].kept.append(_kept(streams))
        if recording:
            self._add_recording(clip, questions, encodings[masks[0]])

    def _scored(
        self, clip: LabelledClip, asked: Sequence[str], windows: list[ClipWindow], full: list[ClipWindow]
    ) -> dict[str, tuple[list[float], list[bool], list[float]]]:
        scored: dict[str, tuple[list[float], list[bool], list[float]]] = {
            question: ([], [], []) for question in self.questions
        }
        for window, reference in zip(windows, full, strict=True):
            for text, answer, exact in zip(
                asked, window.answer.answers, reference.answer.answers, strict=True
            ):
                p, truth, dp = scored[text]
                dp.append(abs(answer.p_yes - exact.p_yes))
                true = clip.truth(text, window.start_s, window.end_s)
                if true is not None:
                    p.append(answer.p_yes)
                    truth.append(true)
        return scored

    def _add_recording(
        self, clip: LabelledClip, questions: Sequence[Question], streams: Sequence[ClipStream]
    ) -> None:
        """Add the first stream of the clip, as a recording."""
        blocks = streams[0].blocks
        frames = [frame for block in blocks for frame in block.block.frames][:RECORDING_FRAMES]
        begun_s = streams[0].begun_s
        start_s, end_s = (begun_s + frame.time_us / 1e6 for frame in (frames[0], frames[-1]))
        full: list[float] | None = None
        for name, how in prefills().items():
            p, kv = ask_recording(self.engine, frames, how, questions)
            full = p if full is None else full
            scored: dict[str, tuple[list[float], list[bool], list[float]]] = {
                question: ([], [], []) for question in self.questions
            }
            for question, own, exact in zip(questions, p, full, strict=True):
                true = clip.truth(question.text, start_s, end_s)
                known = true is not None
                scored[question.text] = ([own] * known, [bool(true)] * known, [abs(own - exact)])
            self.recordings[name].add(scored, float(kv))


def _kept(streams: Sequence[ClipStream]) -> float:
    """Return the share of tokens that are kept."""
    keeps = [frame.keep for stream in streams for block in stream.blocks for frame in block.block.frames]
    return sum(int(keep.sum()) for keep in keeps) / max(1, sum(keep.size for keep in keeps))


def stride_flops(
    engine: TransformersEngine,
    settings: WindowSettings,
    streams: Sequence[ClipStream],
    windows: Sequence[ClipWindow],
    tower: Tower,
) -> float:
    """Return the FLOPs of a stride of a long stream: tower and language model, without questions.

    This is the mean over the windows with the most blocks, plus a share of a key window, since short clips
    have too few key windows.
    """
    strides = [block for stream in streams for block in stream.blocks]
    vision = vision_flops(streams, tower) / len(strides)
    if not windows:
        return vision
    longest = max(len(window.plan.blocks) for window in windows)
    whole = settings.policy is Policy.PRUNE_ONLY
    last = [window for window in windows if len(window.plan.blocks) == longest]
    continued = [prefill_flops(window) for window in last if whole or window.plan.parent is not None]
    if whole and continued:
        return vision + float(np.mean(continued))
    blocks = [block.seen for block in streams[0].blocks][-longest:]
    plan = Planner(engine.layout, settings).plan(blocks, key=True)
    key = float(window_cost(plan, (), engine.model.shape, kv_bytes=0).total_flops)
    usual = float(np.mean(continued)) if continued else key
    return vision + ((settings.key_every - 1) * usual + key) / settings.key_every


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 4)
